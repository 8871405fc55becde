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
from statistics import fmean
from typing import Any

from pages import ROOT, Collected, Made, Report, made, making, provenance
from tradeoff import DATA as TRADEOFF
from tradeoff import configured
from transformers.utils import logging as transformers_logging

from corrigenda import Fact, LanguageModel, load
from corrigenda.data import FactSet, read_facts
from corrigenda.files import write_json, write_text
from corrigenda.runs.environment import machine
from corrigenda.runs.folder import RunFolder
from editing import Editor, FineTune, Rome, Unrelated, Wise, prepare
from eval import METRICS, EditRun, EvalSettings, SequentialRun, SequentialSettings
from eval.evaluation import Evaluation, judged
from eval.measure import measure
from eval.protocols.curves import cell, curve_markdown, draw_curves, value_at
from eval.protocols.fixed_locality import own_prompts
from eval.protocols.sequential import Regime
from eval.statistics.paired import PERMUTATIONS, holm, paired_test

NAME = "sequential"
SCRIPT = "sequential.py"
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


TUNED = "its settings chosen as docs/tradeoff.md says"
OF_OTHERS = "locality or neighbourhood prompts of 200 other facts"

METHODS: dict[str, Method] = {
    "rome": Method(
        "ROME", lambda *_: Rome(), "stack", "the defaults: corrected keys, a constraint for the bare prompt"
    ),
    "rome_original": Method(
        "ROME, original keys",
        lambda *_: Rome(homogeneous_keys=False),
        "stack",
        "`homogeneous_keys=false`, the authors' update",
    ),
    "rome_together": Method("ROME, all at once", lambda *_: Rome(), "together", "one update for all facts so far"),
    "ft_l": Method(
        "FT-L",
        lambda *_: FineTune(lr=5e-4, bound=5e-4, end_token=False),
        "extend",
        "edit by edit, no end token, no entry of V changed by more than 0.0005 in an edit",
    ),
    "ft_m": Method("FT-M", lambda *_: FineTune(), "extend", "edit by edit, target and end token, no bound"),
    "ft_together": Method(
        "FT, all at once", lambda *_: FineTune(), "together", "all facts so far in shuffled mini-batches (LocFT-BF)"
    ),
    "wise_whitened": Method(
        "WISE, whitened",
        lambda facts, others: tuned("wise_whitened", facts, others),
        "extend",
        f"this project's variant (one shard, all entries); {TUNED}; with {OF_OTHERS} among the unrelated prompts",
    ),
    "wise_paper": Method(
        "WISE, the paper's",
        lambda facts, others: tuned("wise_paper", facts, others),
        "extend",
        f"Wang et al. 2024, two shards, merged by TIES when both are full; {TUNED}; with {OF_OTHERS}",
    ),
    "wise_whitened_merge": Method(
        "WISE-merge, whitened",
        lambda facts, others: wise(facts, others, 50),
        "extend",
        f"shards of 50 facts without common entries, merged by TIES; with {OF_OTHERS}",
    ),
    "wise_whitened_retrieve": Method(
        "WISE-retrieve, whitened",
        lambda facts, others: wise(facts, others, 50, variant="retrieve"),
        "extend",
        f"a side memory for every 50 facts, with a margin loss between memories; with {OF_OTHERS}",
    ),
    "grace": Method("GRACE", lambda facts, others: tuned("grace", facts, others), "extend", f"a codebook; {TUNED}"),
    "grace_wide": Method(
        "GRACE, widened",
        lambda facts, others: tuned("grace_wide", facts, others),
        "extend",
        f"its balls wider than its rules leave them; {TUNED}",
    ),
}


def tuned(name: str, facts: FactSet, others: Path) -> Editor:
    """An editor with the settings that were chosen on facts of their own (docs/tradeoff.md), and room for the facts.

    Raises:
        SystemExit: nothing was chosen for it yet.
    """
    found = read_json(TRADEOFF).get("tune", {}).get("editors", {}).get(name) if TRADEOFF.is_file() else None
    if found is None:
        raise SystemExit(f"no settings were chosen for {name}: run docs/reports/tradeoff.py tune first ({TRADEOFF})")
    unrelated = Unrelated(facts=str(others) if others.is_file() else None)
    return configured(name, unrelated, len(facts), found["chosen"])


def wise(facts: FactSet, others: Path, edits_per_shard: int, **changes: Any) -> Wise:
    """`wise_whitened` with shards for all facts, and the unrelated prompts of other facts, where there are some."""
    shards = -(-len(facts) // edits_per_shard)
    rho = 1.0 if "variant" in changes else 1 / shards
    editor = Wise(shards=shards, edits_per_shard=edits_per_shard, rho=rho, **changes)
    found = str(others) if others.is_file() else None
    return replace(editor, unrelated=replace(editor.unrelated, facts=found))


TITLES = {
    "right_after.token_accuracy": "right after its own edit (token accuracy)",
    "token_accuracy": "reliability (token accuracy)",
    "free_generation_strict": "reliability (free generation)",
    "paraphrase_token_accuracy": "generalization (token accuracy)",
    "paraphrase_free_generation_strict": "generalization (free generation)",
    "preservation": "locality (same continuation)",
    "blank_answers": "blank answers before any edit",
    "locality_kl": "locality (KL of the next token)",
    "locality_token_agreement": "locality (same tokens, forced)",
    "fixed.preservation": "fixed locality set (same continuation)",
    "fixed.zsre_fresh.preservation": "fixed, zsRE (same continuation)",
    "fixed.zsre.preservation": "fixed, zsRE (same continuation)",
    "fixed.counterfact.preservation": "fixed, CounterFact (same continuation)",
    "fixed.embedded.preservation": "fixed, embedded facts (same continuation)",
    "neighbourhood_success": "neighbourhood success",
    "perplexity_drift": "perplexity drift",
    "windows_activated": "windows answered",
}

HEADINGS = {
    "fixed.zsre_fresh.preservation": "fixed, zsRE",
    "fixed.zsre.preservation": "fixed, zsRE",
    "fixed.counterfact.preservation": "fixed, CounterFact",
    "fixed.embedded.preservation": "fixed, embedded",
    "windows_activated": "windows",
}
"""Headings of columns that have none of their own in `eval.protocols.curves`."""

COMPARED = {
    "token_accuracy": "reliability",
    "free_generation_strict": "reliability, free",
    "paraphrase_token_accuracy": "generalization",
    "paraphrase_free_generation_strict": "generalization, free",
    "preservation": "locality",
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
    for name in methods:
        folder, editor = work / name, METHODS[name].make(facts, others)
        last = folder / "curve" / f"t-{arguments.upto:04d}.json"

        def stop(last: Path = last) -> bool:
            return time.monotonic() > deadline or last.is_file()

        place = RunFolder(folder)
        idle = (folder / "done.json").is_file() or stop()
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
    stop: Callable[[], bool],
) -> SequentialRun:
    """One method's sequence, to its end or until it is stopped."""
    folder = place.path
    settings = SequentialSettings(regime=regime, after_each="probabilities", keep_edits=True)
    same_editor(folder / "editor.json", editor)
    edits = EditRun(lm, facts, editor, SETTINGS, place)
    sequence = SequentialRun(edits, settings, fixed, stop, folder.parent / "before")
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


def introduction(model: str) -> list[str]:
    """What the page is about."""
    fixed = f"the last {FIXED} facts of the file and {EMBEDDED} of the facts that ship with the project"
    text = f"""# Many edits, one after another

What is left of each edit, and of the model, when the edits become many?

Every method edits the same facts of {model} (float32) in the same order. After T edits, all facts edited so far
are scored again, and so are prompts that nobody edits.

- *Reliability* is the token accuracy on the edited prompts (teacher-forced). Beside it, *free* is strict free
  generation: greedy decoding from the bare prompt, at most {SETTINGS.max_new_tokens} tokens; the answer has to
  start with the target.
- *Generalization* is the same on the paraphrases.
- *Right after* is the reliability when the fact had just been edited.
- *Locality* is the share of the facts' unrelated prompts after which the model goes on with the same
  {SETTINGS.preservation_tokens} tokens (greedy, end tokens barred, line breaks as any other) as before any edit.
  *Blank* is the share of these prompts to which the unedited model, left to end where it will, answers with nothing.
  *KL* is the mean KL(before, after) of the next-token distribution there. *Forced* is the share of the tokens of
  their expected answers at which the most likely token stays the same under teacher forcing. The literature mostly
  counts locality in this last way.
- *Fixed locality* is the locality of one set of prompts, the same set at every T. They are the prompts of
  {fixed}.
- *Drift* is ln perplexity after - before, on {SETTINGS.perplexity_windows} windows of {SETTINGS.perplexity_window}
  tokens of held-out texts (prose, code, dialogue in the model's chat template), each a prompt of its own; its interval
  is over windows. *Windows* is the share of them in which an editor that routes answered.
- *Norm* is the Frobenius norm of the change of the weights, or of what lies beside them.

Rates are in %, drift is in nats, with 95 % bootstrap intervals over subjects. An edit counts as failed if the editor
refused it, or if the model then gave numbers that are not finite.
"""
    return [*text.splitlines(), ""]


def section(
    data: str, methods: Mapping[str, Sequence[Mapping[str, Any]]], keys: Sequence[str], picture: str
) -> Iterator[str]:
    """One data set: the picture, the table of the largest T that each method reached, and the whole table."""
    yield f"## {data}, up to {max(points[-1]['t'] for points in methods.values())} edits"
    yield ""
    yield f"![Curves over the number of edits]({picture})"
    yield ""
    for method in METHODS.values():
        if method.name in methods:
            points = methods[method.name]
            failed = f", {points[-1]['n_failed']} edits failed" if points[-1]["n_failed"] else ""
            yield f"- **{method.name}**: {method.what}; T up to {points[-1]['t']}{failed}"
    yield ""
    for number in sorted({point["t"] for points in methods.values() for point in points}, reverse=True):
        some = {name: points for name, points in methods.items() if any(p["t"] == number for p in points)}
        if number < 10:
            continue
        yield f"After {number} edits:"
        yield ""
        yield from curve_markdown(some, [*keys, "norm", "seconds_per_edit"], [number], HEADINGS)
        yield ""


def same_editor(path: Path, editor: Editor) -> None:
    """Notes the editor's settings; a sequence that another editor began is not gone on with."""
    settings = json.loads(json.dumps(asdict(editor)))  # type: ignore[call-overload]
    if path.is_file() and json.loads(path.read_text(encoding="utf-8")) != settings:
        raise SystemExit(f"{path.parent} was begun with other settings of {editor.name}; move it away to begin again")
    write_json(path, settings)


def page(data: Mapping[str, Any], docs: Path) -> list[Path]:
    """The page and its pictures."""
    first, _, *about = introduction(data["figures"]["model"])
    findings = by_hand("sequential_findings.md", warned=False)
    lines, pictures = (
        [first, "", *provenance(NAME, data, SCRIPT, timed=True), *findings, "## What was done", "", *about],
        [],
    )
    for name, found in data["figures"]["data"].items():
        methods = found["methods"]
        keys = [key for key in TITLES if any(value_at(p, key) for points in methods.values() for p in points)]
        picture = docs / "figures" / f"sequential-{name}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw_curves(methods, keys, picture, names=[TITLES[key] for key in keys])
        lines += section(name, methods, keys, f"figures/{picture.name}")
        lines += shapes(methods)
        lines += same_forms(found["same_form"])
        lines += comparisons(found["paired"])
        pictures.append(picture)
    lines += by_hand("sequential_notes.md", warned=True)
    path = docs / f"{NAME}.md"
    write_text(path, "\n".join(lines).rstrip() + "\n")
    return [path, *pictures]


def by_hand(name: str, warned: bool) -> list[str]:
    """What people wrote about the curves, where there is something, with a word on its figures."""
    notes = Path(__file__).with_name(name)
    if not notes.is_file():
        return []
    heading, *rest = notes.read_text(encoding="utf-8").strip().splitlines()
    warning = (
        "*Written by hand, about earlier runs. Figures below that are in none of the tables above are in no data file, "
        "either.*"
    )
    return [heading, *(["", warning] if warned else []), *rest, ""]


def shapes(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Whether the shape that the papers report is to be seen, by rules stated on the page."""

    def at_end(name: str, key: str) -> float:
        value = value_at(methods[name][-1], key)
        return math.nan if value is None or value["after"] is None else float(value["after"])

    def edits(name: str) -> int:
        return int(methods[name][-1]["t"])

    def figures(name: str, *keys: str) -> str:
        shown = [f"{TITLES[key]} {_shown(key, at_end(name, key))}" for key in keys]
        return f"{name} at T = {edits(name)}: " + ", ".join(shown)

    forced, local, drift = "token_accuracy", "preservation", "perplexity_drift"
    yield "What the papers report, and what these runs show at the largest T:"
    yield ""
    for name in ("ROME", "ROME, original keys"):
        if name in methods:
            collapsed = at_end(name, forced) < 0.5 or at_end(name, drift) > 1
            yield (
                f"- *ROME collapses* (reliability below 50 %, or drift above 1): {_seen(collapsed, edits(name))}. "
                f"{figures(name, 'right_after.token_accuracy', forced, local, drift)}."
            )
    if "GRACE" in methods:
        unedited = methods["GRACE"][-1]["metrics"]["paraphrase_token_accuracy"]["before"]
        gained = at_end("GRACE", "paraphrase_token_accuracy") - unedited
        reliable = at_end("GRACE", forced) >= 0.9 and at_end("GRACE", local) >= 0.9
        flat = reliable and gained < 0.5 * (at_end("GRACE", forced) - unedited)
        yield (
            "- *GRACE is reliable and local but does not generalise* (reliability and locality at least 90 %, and less "
            f"than half of the reliability's gain on paraphrases): "
            f"{_seen(flat, edits('GRACE'))}. "
            f"{figures('GRACE', forced, 'paraphrase_token_accuracy', local)}; paraphrases before any edit "
            f"{_shown(forced, unedited)}."
        )
    for name in ("WISE, whitened", "WISE-merge, whitened", "WISE-retrieve, whitened"):
        if name in methods:
            both = at_end(name, forced) >= 0.9 and at_end(name, local) >= 0.95
            yield (
                "- *This variant of WISE holds both reliability and locality* (at least 90 % and 95 %): "
                f"{_seen(both, edits(name))}. "
                f"{figures(name, forced, 'paraphrase_token_accuracy', local, drift)}."
            )
    yield ""


def same_forms(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The table of what `same_form` found, by method."""
    rows = []
    for key, method in METHODS.items():
        if key in found:
            row = found[key]
            cells = [cell(row["metrics"].get(metric), metric) for metric in SAME_FORM_METRICS]
            rows.append(f"| {method.name} | {row['t']} | {' | '.join(cells)} |")
    if rows:
        yield (
            f"*Prompts of the same form.* The prompts of the last {FIXED} facts of the file have the form of the "
            "edits. Nobody edits their subjects. They are measured as locality prompts:"
        )
        names = " | ".join(METRICS[metric].title for metric in SAME_FORM_METRICS)
        yield from ("", f"| method | T | {names} |", "|---|---|" + "---|" * len(SAME_FORM_METRICS), *rows, "")


def comparisons(found: Mapping[str, Any]) -> Iterator[str]:
    """The table of what `paired` found: a line a method, a column a metric."""
    if not found:
        return
    least = 2 / (PERMUTATIONS + 1) * len(found["rows"])
    yield (
        f"*Against {METHODS[found['against']].name}.* The difference of each method to it after all edits (percentage "
        "points), and the p of a paired permutation test over subjects, corrected for the number of tests in the table "
        f"(Holm; {least:.3f} is the least that {PERMUTATIONS:,} permutations can give):"
    )
    yield from ("", f"| method | {' | '.join(COMPARED.values())} |", "|---|" + "---|" * len(COMPARED))
    for key, method in METHODS.items():
        rows = {row["metric"]: row for row in found["rows"] if row["method"] == key}
        if rows:
            yield f"| {method.name} | " + " | ".join(_compared(rows.get(metric)) for metric in COMPARED) + " |"
    yield ""


def _compared(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    p = "< 0.001" if row["holm"] < 0.001 else f"= {row['holm']:.3f}"
    return f"{100 * row['difference']:+.1f} (p {p})"


def _seen(truth: bool, t: int) -> str:
    if truth:
        return "**seen**"
    return "**not seen**" if t >= 100 else f"not seen, but T = {t} is little"


def _shown(key: str, value: float) -> str:
    unit = METRICS[key.rpartition(".")[2]].written
    return f"{unit.text(value)} %" if unit.is_share else unit.text(value)


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
    return [read_json(path) for path in sorted((folder / "curve").glob("t-*.json"))]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, page)

if __name__ == "__main__":
    REPORT.main()
