"""docs/sequential.md: many edits, made one after another, and what is left of each edit and of the model.

    python docs/reports/sequential.py collect [--t 300] [--data zsre] [--methods rome,ft_l] [--minutes 8]
    python docs/reports/sequential.py page

Every method edits the same facts in the same order and is scored by the sequential protocol. What is finished is kept
in the work folder. The first command goes on where it was stopped or killed. Each time it ends it writes the data, of
what is there so far. 300 edits take hours on two CPU cores; `--t 1000` is for faster machines. `pages.py` says more of
the two steps.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from pages import ROOT, Collected, Made, Report, made, making, provenance, read_data
from tradeoff import configured
from transformers.utils import logging as transformers_logging

from corrigenda import Fact, LanguageModel, load
from corrigenda.data import FactSet, read_facts
from corrigenda.runs.environment import machine
from corrigenda.runs.folder import RunFolder
from corrigenda.system.files import write_json, write_text
from corrigenda.system.progress import counted
from editing import Editor, FineTune, Rome, Unrelated, prepare
from editing.configuration import preset_values
from eval import EditRun, EvalSettings, SequentialRun, SequentialSettings
from eval.evaluation import Evaluation, judged
from eval.measure import measure
from eval.protocols.curves import cell, draw_curves, value_at
from eval.protocols.fixed_locality import own_prompts
from eval.protocols.journal import lines_of
from eval.protocols.settings import Regime
from eval.statistics.paired import PERMUTATIONS, holm, paired_test

NAME = "sequential"
SCRIPT = "sequential.py"
TEMPLATE = Path(__file__).with_name("sequential_page.md")
SHARED = ROOT.parent / "shared" / "data"
SAME_FORM = "same_form.json"
SAME_FORM_METRICS = ("preservation", "blank_answers", "locality_kl")
SETTINGS = EvalSettings(max_new_tokens=20)
FIXED = 50
"""Facts of the fixed locality set that come from the end of the file, which no run edits."""
USES = (
    "eval.protocols.sequential",
    "eval.measure",
    "editing.Rome",
    "editing.FineTune",
    "editing.Wise",
    "editing.Grace",
)
"""What the figures are made with: their code version is of the files of these."""
FRESH = "_fresh"
"""How the names of files end whose facts nothing was chosen on."""
UNTOUCHED = 450
"""So many first facts of the file beside such a one were edited or tuned on before."""
EMBEDDED = 20
"""Facts of the fixed locality set that ship with the project: their neighbourhood prompts are such that the model
knows the answers."""


@dataclass(frozen=True)
class Method:
    """A line of the report.

    Attributes:
        name: in tables and pictures.
        make: from the facts, and a file of other facts that are neither edited nor scored, to the editor (some set
            aside room for the facts, some look at others).
        regime: how its edits come together.
        what: a few words about it.
    """

    name: str
    make: Callable[[FactSet, Path], Editor]
    regime: Regime
    what: str


TUNED = "settings of [tradeoff.md](tradeoff.md)"
OF_OTHERS = "prompts of other facts among its unrelated ones"

METHODS: dict[str, Method] = {
    "rome": Method("ROME", lambda *_: Rome(), "stack", "the defaults, edit by edit"),
    "ft_m": Method("FT-M", lambda *_: FineTune(), "extend", "edit by edit, target and end token, no bound"),
    "ft_together": Method(
        "FT, all at once", lambda *_: FineTune(), "together", "trained anew on all facts so far (LocFT-BF), no sequence"
    ),
    "wise_whitened": Method(
        "WISE, whitened",
        lambda facts, others: tuned("wise_whitened", facts, others),
        "extend",
        f"`wise_whitened`, this project's variant, one shard; {TUNED}; {OF_OTHERS}",
    ),
    "wise_paper": Method(
        "WISE, the paper's",
        lambda facts, others: tuned("wise_paper", facts, others),
        "extend",
        f"`wise_paper`, two shards, merged by TIES when both are full; {TUNED}; {OF_OTHERS}",
    ),
    "grace": Method("GRACE", lambda facts, others: tuned("grace", facts, others), "extend", f"`grace`; {TUNED}"),
    "grace_wide": Method(
        "GRACE, widened",
        lambda facts, others: tuned("grace_wide", facts, others),
        "extend",
        f"`grace_wide`; {TUNED}",
    ),
}


def tuned(name: str, facts: FactSet, others: Path) -> Editor:
    """An editor with the settings that were chosen on facts of their own (docs/tradeoff.md), and room for the facts.

    Raises:
        SystemExit: nothing was chosen for it yet.
    """
    unrelated = Unrelated(facts=str(others) if others.is_file() else None)
    return configured(name, unrelated, len(facts), chosen(name))


def chosen(name: str) -> dict[str, float]:
    """The settings that docs/tradeoff.md chose for an editor.

    Raises:
        SystemExit: nothing was chosen for it yet.
    """
    found: Mapping[str, Any] = read_data("tradeoff")["figures"]["tune"]["editors"]
    if name not in found:
        raise SystemExit(f"no settings were chosen for {name}: run docs/reports/tradeoff.py collect first")
    return dict(found[name]["chosen"])


TITLES = {
    "right_after.token_accuracy": "right after its own edit (token accuracy)",
    "token_accuracy": "edits (token accuracy)",
    "free_generation_strict": "edits (free generation)",
    "paraphrase_token_accuracy": "paraphrases (token accuracy)",
    "paraphrase_free_generation_strict": "paraphrases (free generation)",
    "fixed.embedded.preservation": "known answers kept",
    "neighbourhood_success": "neighbourhood success",
    "perplexity_drift": "perplexity drift",
    "windows_activated": "windows answered",
}
EDITS, PARAPHRASES = "free_generation_strict", "paraphrase_free_generation_strict"
KNOWN = "fixed.embedded.preservation"
COLUMNS = {
    EDITS: "edits, free",
    "token_accuracy": "forced",
    PARAPHRASES: "paraphrases, free",
    "paraphrase_token_accuracy": "forced",
    KNOWN: "known answers kept",
    "windows_activated": "windows answered",
    "perplexity_drift": "drift",
}
"""Of the table of how each method ended. Locality of zsRE is in the data and not here: the page says why."""

COMPARED = {
    "token_accuracy": "edits, forced",
    EDITS: "edits, free",
    "paraphrase_token_accuracy": "paraphrases, forced",
    PARAPHRASES: "paraphrases, free",
}
"""What methods that went equally far are compared in, fact by fact."""
AGAINST = "wise_whitened"
"""The method that all others are compared with: this project's own."""


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--t", type=int, default=300, help="edits")
    parser.add_argument("--data", default="zsre", help="zsre, zsre_fresh or counterfact")
    parser.add_argument("--methods", default="", help=f"comma-separated, of {', '.join(METHODS)}; by default all")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--write", action="store_true", help="run nothing, write what there is")
    parser.add_argument("--upto", type=int, default=0, help="stop (to go on later) when so many edits are scored")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop (to go on later) after so long")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "sequential")


def collect(arguments: argparse.Namespace) -> Collected:
    """The curves of all methods, as far as they got."""
    if arguments.write:
        return gathered(arguments.work, arguments.model)
    warnings.simplefilter("ignore")  # a damaged model makes every editor warn at every fact; the figures show it
    transformers_logging.disable_progress_bar()
    deadline = time.monotonic() + 60 * arguments.minutes
    methods = [name for name in arguments.methods.split(",") if name] or list(METHODS)
    if unknown := set(methods) - set(METHODS):
        raise SystemExit(f"no such method: {', '.join(sorted(unknown))}; there are {', '.join(METHODS)}")
    lm = load(arguments.model)
    facts, between, fixed = read(arguments.data, arguments.t)
    work = arguments.work / f"{arguments.data}-{arguments.t}"
    others = write_others(between, facts, [fact for part in fixed.values() for fact in part], work / "others.jsonl")
    edited = {fact.subject for fact in facts}
    strange = [fact for fact in fixed[arguments.data] if fact.subject not in edited]

    def stop(points: Sequence[Mapping[str, Any]]) -> bool:
        return time.monotonic() > deadline or any(point["t"] == arguments.upto for point in points)

    for name in methods:
        folder, editor = work / name, METHODS[name].make(facts, others)
        place = RunFolder(folder)
        idle = (folder / "done.json").is_file() or stop(curve(folder))
        # Two of these commands at once would write one into the other.
        with place.held(), nullcontext() if idle else making(folder, USES):
            sequence = run(lm, facts, fixed, editor, METHODS[name].regime, place, stop)
            same_form(lm, sequence, strange, folder / SAME_FORM)
    return gathered(arguments.work, arguments.model)


def read(data: str, t: int) -> tuple[FactSet, FactSet, dict[str, list[Fact]]]:
    """The first T facts, those after them, and the parts of the fixed locality set: the last of the file and others."""
    path = SHARED / f"{data}.json"
    facts = plain(path)
    # Facts that nothing was chosen on are all edited; what is beside them comes from the file that they belong to.
    rest = plain(SHARED / f"{data.removesuffix(FRESH)}.json") if data.endswith(FRESH) else facts
    first, end = (UNTOUCHED if data.endswith(FRESH) else t), len(rest) - FIXED
    most = len(facts) if data.endswith(FRESH) else end
    if t > most:
        raise SystemExit(f"{path} has {len(facts)} facts: --t can be {most} at most")
    embedded = list(read_facts("embedded", limit=EMBEDDED))
    return facts[:t], rest[first:end], {data: list(rest[end:]), "embedded": embedded}


def plain(path: Path) -> FactSet:
    """The facts of a file without the texts for the fluency, a large part of the time and none of the question."""
    facts = read_facts(path, on_error="skip")
    return FactSet(facts.name, tuple(replace(fact, generation=()) for fact in facts))


def write_others(between: FactSet, facts: FactSet, fixed: Sequence[Fact], path: Path) -> Path:
    """Writes the facts between those that are edited and the fixed locality set to a file.

    Without the locality and neighbourhood prompts that are scored, too (CounterFact's facts have some in common), and
    without those that name an edited subject.
    """
    scored = {prompt for fact in (*facts, *fixed) for prompt in unrelated_of(fact)}
    subjects = {fact.subject for fact in facts}

    def apart(prompt: str) -> bool:
        return prompt not in scored and not any(subject in prompt for subject in subjects)

    others = [
        replace(
            fact,
            neighbourhood=tuple(filter(apart, fact.neighbourhood)),
            locality=tuple(probe for probe in fact.locality if apart(probe.prompt)),
        )
        for fact in between
    ]
    if others:
        write_text(path, "".join(json.dumps(fact.to_dict(), ensure_ascii=False) + "\n" for fact in others))
    return path


def unrelated_of(fact: Fact) -> list[str]:
    """Its locality and neighbourhood prompts."""
    return [*fact.neighbourhood, *(probe.prompt for probe in fact.locality)]


def run(
    lm: LanguageModel,
    facts: FactSet,
    fixed: Mapping[str, Sequence[Fact]],
    editor: Editor,
    regime: Regime,
    place: RunFolder,
    stop: Callable[[Sequence[Mapping[str, Any]]], bool],
) -> SequentialRun:
    """One method's sequence, to its end or until it is stopped."""
    folder = place.path
    settings = SequentialSettings(regime=regime, after_each="probabilities", keep_edits=True)
    same_editor(folder / "editor.json", editor)
    edits = EditRun(lm, facts, editor, SETTINGS, place)
    sequence = SequentialRun(edits, settings, fixed, lambda: stop(sequence.curve), folder.parent / "before")
    done = folder / "done.json"
    if not done.is_file():
        prepare(editor, lm)
        if sequence.go():
            write_json(done, sequence.summary() | {"machine": machine()})
    return sequence


def same_form(lm: LanguageModel, sequence: SequentialRun, facts: Sequence[Fact], path: Path) -> None:
    """What became of prompts in the form of the edits, but about subjects that nobody edited.

    Measured like all locality prompts, of the edits where the sequence stands, and written to a file.
    """
    t = sequence.done
    if not t or _same_form_at(path) == t:
        return
    asked = own_prompts(facts)
    before = measure(lm, asked, replace(SETTINGS, perplexity_windows=0))
    with ExitStack() as stack:
        for edit in sequence.edits:
            stack.enter_context(edit.applied(lm))
        after = measure(lm, asked, replace(SETTINGS, perplexity_windows=0, generate=False), before)
    cases = tuple(judged(fact, old, new) for fact, old, new in zip(asked, before, after, strict=True))
    found = Evaluation(cases).metrics
    kept = {key: found[key] for key in SAME_FORM_METRICS if key in found}
    write_json(path, {"t": t, "n": len(facts), "metrics": kept})


def _same_form_at(path: Path) -> int | None:
    """The T of what `same_form` wrote; None where there is nothing, or by an earlier version's rule."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return int(found["t"]) if "metrics" in found else None


def same_editor(path: Path, editor: Editor) -> None:
    """Notes the editor's settings; a sequence that another editor began is not gone on with."""
    settings = json.loads(json.dumps(asdict(editor)))  # type: ignore[call-overload]
    if path.is_file() and json.loads(path.read_text(encoding="utf-8")) != settings:
        raise SystemExit(f"{path.parent} was begun with other settings of {editor.name}; move it away to begin again")
    write_json(path, settings)


def page(data: Mapping[str, Any], docs: Path) -> list[Path]:
    """The page and its pictures."""
    sets: Mapping[str, Any] = data["figures"]["data"]
    pictures: list[Path] = []
    parts: list[str] = []
    for name, found in sets.items():
        methods = found["methods"]
        picture = docs / "figures" / f"{NAME}-{name}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        keys = [key for key in TITLES if any(value_at(p, key) for points in methods.values() for p in points)]
        draw_curves(methods, keys, picture, names=[TITLES[key] for key in keys])
        parts += section(name, found, f"figures/{picture.name}")
        pictures.append(picture)
    ran = [key for key, method in METHODS.items() if any(method.name in found["methods"] for found in sets.values())]
    text = TEMPLATE.read_text(encoding="utf-8").format(
        finding=finding(*next(iter(sets.items()))),
        sections="\n".join(parts),
        widen=f"{chosen('grace_wide')['widen']:g}",
        shipped=f"{float(preset_values('grace_wide')['widen']):g}",
        model=data["figures"]["model"],
        blank=blanks(next(iter(sets.values()))),
        methods="\n".join(f"- {METHODS[key].name}: {METHODS[key].what}." for key in ran),
        tokens=SETTINGS.max_new_tokens,
        fixed=FIXED,
        embedded=EMBEDDED,
        same=SETTINGS.preservation_tokens,
        windows=SETTINGS.perplexity_windows,
    )
    path = docs / f"{NAME}.md"
    write_text(path, "\n".join([text.rstrip(), *provenance(NAME, data, SCRIPT)]) + "\n")
    return [path, *pictures]


def after(point: Mapping[str, Any], key: str) -> float:
    """A figure of a point; NaN where it was not measured."""
    value = value_at(point, key)
    return math.nan if value is None or value["after"] is None else float(value["after"])


def finding(name: str, found: Mapping[str, Any]) -> str:
    """The page's first sentence: what is still said of all edits, by methods that edit one after another."""
    one_by_one = {method.name for method in METHODS.values() if method.regime != "together"}
    ends = {method: points[-1] for method, points in found["methods"].items() if method in one_by_one}
    t = max(point["t"] for point in ends.values())
    free = {method: after(point, EDITS) for method, point in ends.items() if point["t"] == t}
    told = "; ".join(f"{method} {100 * free[method]:.1f} %" for method in sorted(free, key=lambda one: -free[one]))
    most = max(free, key=lambda method: after(ends[method], PARAPHRASES))
    return (
        f"**After {t} edits of {name}, made one after another, so much of all edits is still said freely: {told}. "
        f"Of the paraphrases no method says more than {100 * after(ends[most], PARAPHRASES):.1f} % ({most}; the table "
        "below says from what it is told apart).**"
    )


def section(name: str, found: Mapping[str, Any], picture: str) -> Iterator[str]:
    """One data set: how each method ended, how it came there, the picture, and who is told apart."""
    methods: Mapping[str, Sequence[Mapping[str, Any]]] = found["methods"]
    yield from (f"## {name}", "")
    yield "| method | T | " + " | ".join((*COLUMNS.values(), "same form, KL")) + " |"
    yield "|---|---|" + "---|" * (len(COLUMNS) + 1)
    for key, method in METHODS.items():
        if method.name in methods:
            point, other = methods[method.name][-1], found["same_form"].get(key, {"metrics": {}})["metrics"]
            cells = [cell(value_at(point, column), column) for column in COLUMNS]
            shown = " | ".join((*cells, cell(other.get("locality_kl"), "locality_kl")))
            failed = f" ({counted(point['n_failed'], 'edit')} failed)" if point["n_failed"] else ""
            yield f"| {method.name}{failed} | {point['t']} | {shown} |"
    yield ""
    yield from changes(methods)
    if AGAINST in found["same_form"] and METHODS[AGAINST].name in methods:
        other = found["same_form"][AGAINST]["metrics"]["locality_kl"]["after"]
        kept = 100 * after(methods[METHODS[AGAINST].name][-1], KNOWN)
        yield (
            f"{METHODS[AGAINST].name} is not selective: questions of the edits' form about other subjects move by "
            f"{other:.1f} nats, and it keeps {kept:.1f} % of the known answers."
        )
    yield from ("", f"![Curves over the number of edits]({picture})", "")
    yield "How it came there: of all edits so far, and of their paraphrases, said freely, in %:"
    steps = sorted({point["t"] for points in methods.values() for point in points if point["t"] >= 10})
    yield from ("", "| method | " + " | ".join(f"T = {t}" for t in steps) + " |", "|---|" + "---|" * len(steps))
    for title, points in methods.items():
        at = {
            point["t"]: "; ".join(f"{100 * after(point, key):.1f}" for key in (EDITS, PARAPHRASES)) for point in points
        }
        yield f"| {title} | {' | '.join(at.get(t, '') for t in steps)} |"
    yield ""
    yield from comparisons(found["paired"])


def changes(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """A sentence on what the perplexity does not show."""
    ends = [points[-1] for points in methods.values()]
    drifts = [after(point, "perplexity_drift") for point in ends]
    lost = [point for point in ends if after(point, KNOWN) < 0.5]
    if lost:
        least, most = (100 * of(after(point, KNOWN) for point in lost) for of in (min, max))
        yield (
            f"Perplexity hardly shows what is lost: no drift is above {max(drifts):.2f} nats, and {len(lost)} of the "
            f"{len(ends)} methods keep {least:.1f} to {most:.1f} % of the known answers."
        )


def blanks(found: Mapping[str, Any]) -> str:
    """To how many of the prompts that nobody edits the unedited model answers with nothing."""
    told = []
    shares = {
        "the facts' own locality questions": [
            after(points[-1], "blank_answers") for points in found["methods"].values()
        ]
    }
    forms = [each["metrics"].get("blank_answers") for each in found["same_form"].values()]
    shares["the questions of the edits' form"] = [each["after"] for each in forms if each]
    for what, each in shares.items():
        if known := [share for share in each if not math.isnan(share)]:
            told.append(f"{100 * known[0]:.1f} % of {what}")
    return (
        f"To {' and '.join(told)} the unedited model, left to end, answers with nothing or a line break."
        if told
        else ""
    )


def comparisons(found: Mapping[str, Any]) -> Iterator[str]:
    """The table of what `paired` found: a line a method, a column a metric."""
    if not found:
        return
    rows = found["rows"]
    least = 2 / (PERMUTATIONS + 1) * len(rows)
    yield (
        f"Less {METHODS[found['against']].name}, in percentage points, after the last edit, n = {rows[0]['n']}. p is "
        f"of paired permutation tests over subjects, corrected for all {len(rows)} in the data (Holm; the least is "
        f"{least:.3f}). From 0.05 on two methods are *not told apart*, and a 95 % interval of the difference stands "
        "there (normal, from the p before the correction: the data keep no values of single facts):"
    )
    yield from ("", f"| method | {' | '.join(COMPARED.values())} |", "|---|" + "---|" * len(COMPARED))
    for key, method in METHODS.items():
        own = {row["metric"]: row for row in rows if row["method"] == key}
        if own:
            yield f"| {method.name} | " + " | ".join(compared(own.get(metric)) for metric in COMPARED) + " |"
    yield ""


def compared(row: Mapping[str, Any] | None) -> str:
    """A difference with its p, or with its interval where it is not told apart."""
    if row is None:
        return ""
    shown = f"{100 * row['difference']:+.1f}"
    if row["holm"] < 0.05:
        return f"{shown} (p = {row['holm']:.3f})"
    z = NormalDist().inv_cdf(1 - row["p"] / 2)
    if not z:  # p = 1: the test says nothing of the width
        return f"{shown}, not told apart"
    half = abs(row["difference"]) / z * NormalDist().inv_cdf(0.975)
    bounds = (100 * (row["difference"] + side * half) for side in (-1, 1))
    return f"{shown} [{', '.join(f'{bound:.1f}' for bound in bounds)}], not told apart"


def gathered(work: Path, model: str) -> Collected:
    """All curves in the work folder, by data set and method, each of the sequence that went furthest.

    Sequences of different lengths begin with the same facts, so their points can stand side by side.
    """
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    runs: dict[str, Made] = {}
    for data in sorted({folder.name.rpartition("-")[0] for folder in work.glob("*-*")}):
        methods: dict[str, list[dict[str, Any]]] = {}
        same: dict[str, dict[str, Any]] = {}
        for key, method in METHODS.items():
            folders = sorted(work.glob(f"{data}-*/{key}"))
            curves = {folder: points for folder in folders if (points := curve(folder))}
            if curves:
                furthest = max(curves, key=lambda folder: int(curves[folder][-1]["t"]))
                methods[method.name] = curves[furthest]
                runs[f"{data} {key}"] = made(furthest)
            asked = [
                read_json(folder / SAME_FORM) for folder in folders if _same_form_at(folder / SAME_FORM) is not None
            ]
            if asked:
                same[key] = max(asked, key=lambda row: int(row["t"]))
        if methods:
            figures[data] = {"methods": methods, "same_form": same, "paired": paired(work, data)}
    return Collected({"model": model, "data": figures}, runs)


def paired(work: Path, data: str) -> dict[str, Any]:
    """Each method's difference to `AGAINST` after the last edit, by metric, with the p of a paired permutation test.

    Of the longest sequence that `AGAINST` went through; methods that did not are left out. The p-values of a data set
    are corrected for their number (Holm).
    """
    ends: dict[str, dict[str, Mapping[str, Any]]] = {}
    folders = sorted(
        work.glob(f"{data}-*/{AGAINST}/done.json"), key=lambda path: int(path.parts[-3].rpartition("-")[2])
    )
    for key in METHODS if folders else ():
        folder = folders[-1].parents[1] / key
        if (folder / "done.json").is_file():
            ends[key] = {record["id"]: record for record in RunFolder(folder).cases("retention")}
    ours, found = ends.pop(AGAINST, {}), []
    for key, theirs in ends.items():
        both = [id_ for id_ in ours if id_ in theirs]
        for metric in COMPARED:
            sides = [[one[id_]["after"]["values"].get(metric) for id_ in both] for one in (theirs, ours)]
            if both and None not in sides[0] + sides[1]:
                subjects = [ours[id_]["fact"]["subject"] for id_ in both]
                p = paired_test(*sides, groups=subjects)
                difference = fmean(sides[0]) - fmean(sides[1])
                found.append({"method": key, "metric": metric, "n": len(both), "difference": difference, "p": p})
    for row, corrected in zip(found, holm([row["p"] for row in found]), strict=True):
        row["holm"] = corrected
    return {"against": AGAINST, "rows": found} if found else {}


def curve(folder: Path) -> list[dict[str, Any]]:
    """The points that a sequence has."""
    return lines_of(folder, "point")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, page)

if __name__ == "__main__":
    REPORT.main()
