"""docs/sequential.md: many edits, made one after another, and what is left of each edit and of the model.

Each time the first command ends it writes the data of what is there so far. 300 edits take hours on two CPU cores.
"""

import itertools
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from options import FILES, OUTPUTS, Data, Options, asking, deadline_of, some_of
from pages import Collected, Made, made, making, read_data, read_json
from report import Draw, Report
from rows import after_at, corrected
from runs import chosen, without_generation, write_others
from tradeoff_memories import configured
from transformers.utils import logging as transformers_logging

from corrigenda import Fact, LanguageModel, load, read_facts
from corrigenda.data import FactSet
from corrigenda.edits.edit import all_applied
from corrigenda.runs.environment import machine
from corrigenda.runs.folder import RunFolder
from corrigenda.system.files import write_json
from corrigenda.system.progress import counted
from editing import Editor, FineTune, Rome, Unrelated, prepare
from editing.configuration import preset_values
from eval import EditRun, EvalSettings, Evaluation, SequentialRun, SequentialSettings, judged, measure, paired_test
from eval.protocols.curves import draw_curves, value_at
from eval.protocols.fixed_locality import own_prompts
from eval.protocols.journal import lines_of
from eval.protocols.settings import Regime
from eval.statistics.paired import PERMUTATIONS

NAME, SCRIPT = "sequential", "sequential.py"
SAME_FORM, DONE = "same_form.json", "done.json"
SAME_FORM_METRICS = ("preservation", "blank_answers", "locality_kl")
SETTINGS = EvalSettings(max_new_tokens=20)
FIXED, EMBEDDED = 50, 20
"""Facts of the fixed locality set: from the file's end, which no run edits; and that ship, whose answers it knows."""
USES = ("eval.protocols.sequential", "eval.measure", *map("editing.{}".format, ("Rome", "FineTune", "Wise", "Grace")))
FRESH, UNTOUCHED = "_fresh", 450
"""How names of files end whose facts nothing was chosen on; of the file beside it so many were edited or tuned on."""


class Method(NamedTuple):
    """A line of the report; its editor, if docs/tradeoff.md chose none."""

    name: str
    regime: Regime
    editor: Editor | None = None


METHODS: dict[str, Method] = {
    "rome": Method("ROME", "stack", Rome()),
    "ft_m": Method("FT-M", "extend", FineTune()),
    "ft_together": Method("FT, all at once", "together", FineTune()),
    "wise_whitened": Method("WISE, whitened", "extend"),
    "wise_paper": Method("WISE, the paper's", "extend"),
    "grace": Method("GRACE", "extend"),
    "grace_wide": Method("GRACE, widened", "extend"),
}
AGAINST = "wise_whitened"  # the method that all others are compared with: this project's own
EDITS, PARAPHRASES = "free_generation_strict", "paraphrase_free_generation_strict"
KNOWN = "fixed.embedded.preservation"
TITLES = {  # of the picture's panels
    "right_after.token_accuracy": "right after its own edit (token accuracy)",
    "token_accuracy": "edits (token accuracy)",
    EDITS: "edits (free generation)",
    "paraphrase_token_accuracy": "paraphrases (token accuracy)",
    PARAPHRASES: "paraphrases (free generation)",
    KNOWN: "known answers kept",
    "neighbourhood_success": "neighbourhood success",
    "perplexity_drift": "perplexity drift",
    "windows_activated": "windows answered",
}
COMPARED = ("token_accuracy", EDITS, "paraphrase_token_accuracy", PARAPHRASES)
"""What methods that went equally far are compared in, fact by fact."""
options = asking(
    *("--model", "--minutes", "--write"),
    t=(300, "edits"),
    data=("zsre", "zsre, zsre_fresh or counterfact"),
    methods=some_of(METHODS),
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected:
    if arguments.write:
        return gathered(arguments.work, arguments.model)
    warnings.simplefilter("ignore")  # a damaged model makes every editor warn at every fact; the figures show it
    transformers_logging.disable_progress_bar()
    deadline = deadline_of(arguments)
    methods = chosen(arguments.methods, METHODS, "method")
    lm = load(arguments.model)
    facts, between, fixed = read(arguments.data, arguments.t)
    work = arguments.work / f"{arguments.data}-{arguments.t}"
    others = write_others(between, [*facts, *itertools.chain(*fixed.values())], facts, work / "others.jsonl")
    edited = {fact.subject for fact in facts}
    strange = [fact for fact in fixed[arguments.data] if fact.subject not in edited]
    unrelated = Unrelated(facts=str(others) if others.is_file() else None)

    def stop() -> bool:
        return deadline is not None and time.monotonic() > deadline

    for name in methods:
        editor = METHODS[name].editor or configured(name, unrelated, len(facts), settings_chosen(name))
        place = RunFolder(work / name)
        # Two of these commands at once would write one into the other.
        with place.held(), nullcontext() if (place.path / DONE).is_file() or stop() else making(place.path, USES):
            edits = EditRun(lm, facts, editor, SETTINGS, place, before=work / "before")
            same_form(lm, run(edits, METHODS[name].regime, fixed, stop), strange, place.path / SAME_FORM)
    return gathered(arguments.work, arguments.model)


def settings_chosen(name: str) -> dict[str, float]:
    """The settings that docs/tradeoff.md chose for an editor; it has to be there."""
    found: Data = read_data("tradeoff")["figures"]["tune"]["editors"]
    if name not in found:
        raise SystemExit(f"no settings were chosen for {name}: run docs/reports/tradeoff.py collect first")
    return dict(found[name]["chosen"])


def read(data: str, t: int) -> tuple[FactSet, FactSet, dict[str, list[Fact]]]:
    """The first T facts, those after them, and the parts of the fixed locality set: the last of the file and others."""
    # Facts that nothing was chosen on are all edited; what is beside them comes from the file that they belong to.
    fresh = data.endswith(FRESH)
    files = [FILES / f"{name}.json" for name in (data, data.removesuffix(FRESH))]
    facts, rest = (without_generation(read_facts(path, on_error="skip")) for path in files)
    first, end = UNTOUCHED if fresh else t, len(rest) - FIXED
    if t > (most := len(facts) if fresh else end):
        raise SystemExit(f"{files[0]} has {len(facts)} facts: --t can be {most} at most")
    embedded = list(read_facts("embedded", limit=EMBEDDED))
    return facts[:t], rest[first:end], {data: list(rest[end:]), "embedded": embedded}


def run(edits: EditRun, regime: Regime, fixed: Mapping[str, Sequence[Fact]], stop: Callable[[], bool]) -> SequentialRun:
    """One method's sequence, to its end or until it is stopped; one that another editor began is not gone on with."""
    folder, editor = edits.folder.path, edits.editor
    settings = json.loads(json.dumps(asdict(editor)))  # type: ignore[call-overload]
    if (noted := folder / "editor.json").is_file() and read_json(noted) != settings:
        raise SystemExit(f"{folder} was begun with other settings of {editor.name}; move it away to begin again")
    write_json(noted, settings)
    how = SequentialSettings(regime=regime, after_each="probabilities", keep_edits=True)
    sequence = SequentialRun(edits, how, fixed, stop)
    if not (done := folder / DONE).is_file():
        prepare(editor, edits.lm)
        if sequence.go():
            write_json(done, sequence.summary() | {"machine": machine()})
    return sequence


def same_form(lm: LanguageModel, sequence: SequentialRun, facts: Sequence[Fact], path: Path) -> None:
    """What became of prompts in the form of the edits, but about subjects that nobody edited."""
    # Measured like all locality prompts, of the edits where the sequence stands, and written to a file.
    t = sequence.done
    if not t or (path.is_file() and read_json(path)["t"] == t):
        return
    asked = own_prompts(facts)
    before = measure(lm, asked, replace(SETTINGS, perplexity_windows=0))
    with all_applied(sequence.edits, lm):
        after = measure(lm, asked, replace(SETTINGS, perplexity_windows=0, generate=False), before)
    found = Evaluation(tuple(map(judged, asked, before, after))).metrics
    kept = {key: found[key] for key in SAME_FORM_METRICS if key in found}
    write_json(path, {"t": t, "n": len(facts), "metrics": kept})


def gathered(work: Path, model: str) -> Collected:
    """All curves in the work folder, by data set and method, each of the sequence that went furthest."""
    # Sequences of different lengths begin with the same facts, so their points can stand side by side.
    figures: dict[str, dict[str, Any]] = {}
    runs: dict[str, Made] = {}
    for data in sorted({folder.name.rpartition("-")[0] for folder in work.glob("*-*")}):
        found: dict[str, dict[str, Any]] = {"methods": {}, "same_form": {}, "paired": paired(work, data)}
        for key, method in METHODS.items():
            folders = sorted(work.glob(f"{data}-*/{key}"))
            if curves := {folder: points for folder in folders if (points := lines_of(folder, "point"))}:
                furthest = max(curves, key=lambda folder: int(curves[folder][-1]["t"]))
                found["methods"][method.name], runs[f"{data} {key}"] = curves[furthest], made(furthest)
            if asked := [read_json(path) for folder in folders if (path := folder / SAME_FORM).is_file()]:
                found["same_form"][key] = max(asked, key=itemgetter("t"))
        if found["methods"]:
            figures[data] = found
    return Collected({"model": model, "data": figures}, runs)


def paired(work: Path, data: str) -> dict[str, Any]:
    """Each method's difference to `AGAINST` after the last edit, by metric, with the p of a paired permutation test."""
    # Of the longest sequence that `AGAINST` went through; methods that did not are left out. The p-values of a data set
    # are corrected for their number (Holm).
    ends: dict[str, dict[str, Data]] = {}
    went = [path for path in work.glob(f"{data}-*") if (path / AGAINST / DONE).is_file()]
    for key in METHODS if went else ():
        folder = max(went, key=lambda path: int(path.name.rpartition("-")[2])) / key
        if (folder / DONE).is_file():
            ends[key] = {record["id"]: record for record in RunFolder(folder).cases("retention")}
    ours, found = ends.pop(AGAINST, {}), []
    for (key, theirs), metric in itertools.product(ends.items(), COMPARED):
        both = [id_ for id_ in ours if id_ in theirs]
        left, right = ([one[id_]["after"]["values"].get(metric) for id_ in both] for one in (theirs, ours))
        if both and None not in left + right:
            p = paired_test(left, right, groups=[ours[id_]["fact"]["subject"] for id_ in both])
            difference = fmean(left) - fmean(right)
            found.append({"method": key, "metric": metric, "n": len(both), "difference": difference, "p": p})
    corrected(found, to="holm")
    return {"against": AGAINST, "rows": found, "permutations": PERMUTATIONS[-1]} if found else {}


def digest(figures: Data) -> dict[str, Any]:
    """What the page shows of each data set, and how methods are called."""
    sets = {name: section(one) for name, one in figures["data"].items()}
    first, one = next(iter(figures["data"].items()))
    asked = {"own": [points[-1] for points in one["methods"].values()], "same_form": one["same_form"].values()}
    blank = {kind: [after(point, "blank_answers") for point in points] for kind, points in asked.items()}
    return {
        **{"sets": sets, "first": first, "names": {key: method.name for key, method in METHODS.items()}},
        **{"against": AGAINST, "fixed": FIXED, "embedded": EMBEDDED, "edits": EDITS, "paraphrases": PARAPHRASES},
        "ran": [key for key in METHODS if any(key in one["ran"] for one in sets.values())],
        "blank": {kind: next((one for one in each if not math.isnan(one)), None) for kind, each in blank.items()},
    }


def section(found: Data) -> dict[str, Any]:
    """One data set: the methods' ends, those that edit one after another and went furthest, and the comparisons."""
    curves = {key: found["methods"][one.name] for key, one in METHODS.items() if one.name in found["methods"]}
    ends = {key: points[-1] for key, points in curves.items()}
    in_turn = [key for key in ends if METHODS[key].regime != "together"]
    t = max(ends[key]["t"] for key in in_turn)
    furthest = [key for key in in_turn if ends[key]["t"] == t]
    rows = []
    # Data without their number are older than the finer test, and no values of single facts are left to test anew.
    permutations = found["paired"].get("permutations", PERMUTATIONS[0])
    for row in found["paired"].get("rows", ()):
        # The 95 % interval that p stands for (normal); none where p = 1, which says nothing of it.
        z, whole = NormalDist().inv_cdf(1 - row["p"] / 2), NormalDist().inv_cdf(0.975)
        half = abs(row["difference"]) / z * whole if z else None
        bounds = {"low": -1, "high": 1}
        rows.append(row | {at: None if half is None else row["difference"] + way * half for at, way in bounds.items()})
    return {
        **{"ran": list(ends), "t": t, "rows": rows, "least": 2 / (permutations + 1) * len(rows)},
        "furthest": sorted(furthest, key=lambda key: -after(ends[key], EDITS)),
        "most": max(furthest, key=lambda key: after(ends[key], PARAPHRASES)),
        "known": {key: known for key, end in ends.items() if not math.isnan(known := after(end, KNOWN))},
        "drift": max(after(end, "perplexity_drift") for end in ends.values()),
        "steps": sorted({point["t"] for points in curves.values() for point in points if point["t"] >= 10}),
    }


def after(point: Data, key: str) -> float:
    """A figure of a point; NaN where it was not measured."""
    return math.nan if (value := after_at(point, key)) is None else value


def shown(data: Data) -> dict[str, Any]:
    widen = [settings_chosen("grace_wide")["widen"], float(preset_values("grace_wide")["widen"])]
    return {**data["figures"], **data["digest"], "widen": widen, "settings": SETTINGS, "counted": counted}


def pictures(data: Data) -> dict[str, Draw]:
    """The curves of each data set."""

    def draw(name: str, data: Data, path: Path) -> None:
        methods = data["figures"]["data"][name]["methods"]
        keys = [key for key in TITLES if any(value_at(p, key) for points in methods.values() for p in points)]
        draw_curves(methods, keys, path, names=[TITLES[key] for key in keys])

    return {f"{NAME}-{name}.png": partial(draw, name) for name in data["figures"]["data"]}


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, shown, pictures)
if __name__ == "__main__":
    REPORT.main()
