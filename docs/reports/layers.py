"""docs/localization.md: does locating a fact say where to edit it?

ROME at every layer on the same facts, each edited alone from the clean model; beside it, causal tracing of the first
facts that the model knows ("Does Localization Inform Editing?", Hase et al. 2023).

    python docs/reports/layers.py collect [--facts 20] [--traced 24] [--contexts 5] [--minutes 8]
    python docs/reports/layers.py page

What is finished is kept in the work folder, and the first command goes on where it was stopped. It writes the data
when all layers and traces are done; `pages.py` says more of the steps.
"""

import argparse
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pages import ROOT, Collected, Report, beside, keeping_option, made, making, model_by_model, of_each_model
from words import written

from corrigenda import Fact, LanguageModel, load
from corrigenda.data import read_facts
from corrigenda.runs.folder import RunFolder
from editing import EditRefusedError, Rome
from eval import METRICS, Case, EvalSettings, Evaluation, Measurement, judged, measure
from eval.measure import on_windows
from eval.scoring.held_out import in_turn
from eval.statistics.paired import harmonic_mean
from eval.statistics.ranks import partial_rank_correlation, rank_correlation
from locate import CausalTrace, UnknownFactError

NAME = "localization"
SCRIPT = "layers.py"
SETTINGS = EvalSettings(max_new_tokens=10)
SCORES_ONLY = replace(SETTINGS, generate=False, perplexity_windows=0)
KEYS = (
    *("efficacy_success", "paraphrase_success", "neighbourhood_success", "score", "preservation"),
    *("neighbourhood_kl", "perplexity_drift"),
)
PARTS = METRICS["score"].parts
USES = ("editing.Rome", "eval.evaluation", "eval.measure", "locate.CausalTrace")
"""What the figures are made with: the code version of all of them is of the files of these."""
TRACE = CausalTrace(site="ffn")
LEAST_TRACED = 20
RESAMPLES = 2000

Array: TypeAlias = NDArray[np.float64]


# -- the first step


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", default=str(ROOT.parent / "shared" / "data" / "counterfact.json"))
    parser.add_argument("--facts", type=int, default=20, help="how many are edited at every layer; 0: none")
    parser.add_argument("--layers", default="", help="comma-separated; by default all")
    parser.add_argument("--known", help="the file whose facts are traced where the model knows them; by default --data")
    parser.add_argument("--scores-only", action="store_true", help="no free answers and no perplexity after an edit")
    parser.add_argument("--traced", type=int, default=24, help="how many facts that the model knows are traced")
    parser.add_argument("--contexts", type=int, default=None, help="of ROME, of 10 tokens; by default ROME's own")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop (to go on later) after so long")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "layers")
    keeping_option(parser)


def collect(arguments: argparse.Namespace) -> Collected | None:
    """Edits at every layer and traces; None where the time was up before all was done."""
    deadline = time.monotonic() + 60 * arguments.minutes
    if arguments.traced < LEAST_TRACED:
        print(
            f"--traced {arguments.traced}: with fewer than {LEAST_TRACED} traced facts the page says that they are few"
        )
    lm = load(arguments.model)
    work = arguments.work / lm.fingerprint[:8]  # what was found of another model is not this one's
    known = read_facts(arguments.known or arguments.data)
    # Every third layer first, so that a stopped run has the whole range already.
    layers = [int(layer) for layer in arguments.layers.split(",") if layer] or [
        layer for first in range(3) for layer in range(first, lm.n_layers, 3)
    ]
    folder = work / ("effects" if not arguments.layers else f"effects-{'-'.join(map(str, sorted(layers)))}")
    if (found := traced_together(lm, known, arguments.traced, sorted(layers), folder, deadline)) is None:
        return None
    traces, unknown = found
    effects = [trace["effects"] for trace in traces]
    read = read_facts(arguments.data, limit=arguments.facts) if arguments.facts else ()
    facts = [replace(fact, generation=()) for fact in read]
    editor = Rome() if arguments.contexts is None else Rome(prefix_lengths=((10, arguments.contexts),))
    # What was edited with other contexts is kept apart.
    name = "layer" if arguments.contexts is None else f"contexts-{arguments.contexts}-layer"
    name = f"scores-{name}" if arguments.scores_only else name
    settings = SCORES_ONLY if arguments.scores_only else SETTINGS
    folders = {layer: work / f"{name}-{layer:02d}" for layer in layers}
    before: list[Measurement] = []
    for layer, folder in folders.items():
        done = {record["id"] for record in RunFolder(folder).cases()}
        if done >= {fact.id for fact in facts}:
            continue
        with making(folder, USES):
            before = before or measure(lm, facts, settings)
            for place, (fact, old) in enumerate(zip(facts, before, strict=True)):
                if fact.id not in done:
                    unedited = on_windows(old, in_turn(place, settings))
                    case = edited(lm, fact, unedited, replace(editor, layer=layer), settings)
                    RunFolder(folder).append(case.to_dict())
                if time.monotonic() > deadline:
                    return None
    figures = {
        "n_layers": lm.n_layers,
        "contexts": arguments.contexts,
        "default_layer": Rome().resolved_layer(lm),
        "subjects": [fact.subject for fact in facts],
        "layers": {layer: of_layer(folders[layer], facts) for layer in sorted(layers)} if facts else {},
        "traced": {
            "of": Path(arguments.known or arguments.data).stem,
            "unknown": unknown,
            "layers": sorted(layers),
            "peak": sorted(layers)[int(np.mean(effects, axis=0).argmax())],
            "window": min(TRACE.window, lm.n_layers),
            "subjects": [trace["subject"] for trace in traces],
            # Of each fact the indirect effect at the last subject token, by layer.
            "effects": effects,
        },
    }
    runs = {f"layer {layer}": made(folders[layer]) for layer in figures["layers"]} | {"traces": made(folder)}
    return beside(NAME, lm.name, figures, runs, arguments)


def of_layer(folder: Path, facts: Sequence[Fact]) -> dict[str, Any]:
    """The figures of a layer, and each fact's part of S, in the order of the facts."""
    records = {record["id"]: record for record in RunFolder(folder).cases()}
    cases = [Case.from_dict(records[fact.id]) for fact in facts]
    metrics = Evaluation(tuple(cases)).metrics
    return {
        "metrics": {
            key: {part: metrics[key][part] for part in ("after", "low", "high")} for key in KEYS if key in metrics
        },
        "facts": {key: [case.after.values[key] for case in cases] for key in PARTS},
        "failed": sum(bool(case.error) for case in cases),
    }


def edited(lm: LanguageModel, fact: Fact, before: Measurement, editor: Rome, settings: EvalSettings = SETTINGS) -> Case:
    """One fact edited alone at one layer, and scored."""
    begin = time.perf_counter()
    try:
        edit = editor.edit(lm, [fact])
    except EditRefusedError as refusal:
        [after] = measure(lm, [fact], settings, [before])
        return judged(fact, before, after, None, time.perf_counter() - begin, f"refused: {refusal}")
    seconds = time.perf_counter() - begin
    with edit.applied(lm):
        [after] = measure(lm, [fact], settings, [before])
    return judged(fact, before, after, dict(edit.origin.report[0]), seconds)


def traced_together(
    lm: LanguageModel, facts: Iterable[Fact], n: int, layers: Sequence[int], folder: Path, deadline: float
) -> tuple[list[dict[str, Any]], int] | None:
    """FFN windows traced for the first n facts that the model knows; and how many before them it does not know.

    None where the time was up. A fact whose subject ends its prompt is passed over: there the subject's last token is
    the one that answers.
    """
    runs = RunFolder(folder)
    records = {record["id"]: record for record in runs.cases()}
    traces: list[dict[str, Any]] = []
    unknown = 0
    with ExitStack() as noted:
        begun = False
        for fact in facts:
            if len(traces) == n:
                break
            if fact.prompt.endswith("{}"):
                continue
            if fact.id not in records:
                if time.monotonic() > deadline:
                    return None
                if not begun:  # nothing is noted where all are there
                    begun = True
                    noted.enter_context(making(folder, USES))
                records[fact.id] = traced(lm, fact, layers)
                runs.append(records[fact.id])
            if "effects" in records[fact.id]:
                traces.append(records[fact.id])
            else:
                unknown += 1
    return traces, unknown


def traced(lm: LanguageModel, fact: Fact, layers: Sequence[int]) -> dict[str, Any]:
    """The indirect effects at a fact's last subject token, at some layers; none where the model does not know it."""
    record: dict[str, Any] = {"id": fact.id, "subject": fact.subject}
    with suppress(UnknownFactError):
        record["effects"] = TRACE.at_last_subject(lm, fact, layers=layers).tolist()
    return record


# -- what the layer of tracing and the layer's number say about S


def correlations(facts: Array, effects: Array, layers: Sequence[int]) -> tuple[float, float, float]:
    """Over layers: the rank correlation of S with the traced effect, with the layer's number, and the partial one.

    Args:
        facts: each edited fact's parts of S, (layer, part, fact).
        effects: of each traced fact the indirect effect, (fact, layer), at the same layers.
        layers: their numbers.

    Returns:
        Spearman's r of S and the mean effect; of S and the layer's number; and of S and the effect given the layer's
        number (`eval.statistics.ranks.partial_rank_correlation`).
    """
    scores, effect = harmonic_mean(*facts.mean(axis=2).T), effects.mean(axis=0)
    return (
        rank_correlation(scores, effect),
        rank_correlation(scores, layers),
        partial_rank_correlation(scores, effect, layers),
    )


def bootstrapped(
    facts: Array,
    subjects: Sequence[str],
    effects: Array,
    traced_subjects: Sequence[str],
    layers: Sequence[int],
    seed: int = 0,
) -> list[tuple[float, float] | None]:
    """95 % percentile intervals of `correlations`, over edited and traced facts.

    Subjects of the edited facts and of the traced facts are drawn anew, each with replacement, 2,000 times. The layers
    stay: they are all that the model has.

    Returns:
        an interval for each of the three; None where fewer than nine of ten draws have a number.
    """
    draw = np.random.default_rng(seed)
    found = np.full((RESAMPLES, 3), math.nan)
    for row in found:
        mine, traced = _drawn(subjects, draw), _drawn(traced_subjects, draw)
        row[:] = correlations(facts[:, :, mine], effects[traced], layers)
    intervals: list[tuple[float, float] | None] = []
    for column in found.T:
        numbers = column[np.isfinite(column)]
        bounds = np.quantile(numbers, [0.025, 0.975]) if len(numbers) >= 0.9 * RESAMPLES else None
        intervals.append(None if bounds is None else (float(bounds[0]), float(bounds[1])))
    return intervals


def _drawn(subjects: Sequence[str], draw: np.random.Generator) -> list[int]:
    """The places of the facts of as many subjects as there are, drawn with replacement."""
    places: dict[str, list[int]] = {}
    for place, subject in enumerate(subjects):
        places.setdefault(subject, []).append(place)
    names = list(places)
    return [place for number in draw.integers(len(names), size=len(names)) for place in places[names[number]]]


def digest(figures: Mapping[str, Any]) -> dict[str, Any]:
    """`correlations`, each with its interval, None where it is not defined; and the layer with the highest S."""
    layers = by_number(figures)
    few_traced = len(figures["traced"]["effects"]) < LEAST_TRACED
    if not layers:
        return {"correlations": [], "best": None, "few_traced": few_traced}
    facts = np.array([[found["facts"][key] for key in PARTS] for found in layers.values()])
    traced = figures["traced"]
    effects = np.array(traced["effects"])[:, [traced["layers"].index(layer) for layer in layers]]
    values = correlations(facts, effects, list(layers))
    bounds = bootstrapped(facts, figures["subjects"], effects, traced["subjects"], list(layers))
    return {
        "correlations": [
            {"value": None if math.isnan(value) else value, "interval": bound}
            for value, bound in zip(values, bounds, strict=True)
        ],
        "best": max(layers, key=lambda layer: layers[layer]["metrics"]["score"]["after"]),
        "few_traced": few_traced,
    }


def by_number(figures: Mapping[str, Any]) -> dict[int, Any]:
    """The figures of the layers, by their numbers."""
    return {int(layer): found for layer, found in figures["layers"].items()}


def draw(data: Mapping[str, Any], path: Path) -> None:
    """For each model S, ES, PS and NS by edited layer, over the indirect effect by traced layer."""
    models = data["figures"]["models"]
    figure = Figure(figsize=(1 + 6 * len(models), 5), layout="constrained")
    columns = figure.subplots(2, len(models), sharex="col", height_ratios=[2, 1], squeeze=False).T
    for (upper, lower), (model, figures) in zip(columns, models.items(), strict=True):
        layers, traced = by_number(figures), figures["traced"]
        effects = np.mean(traced["effects"], axis=0)
        for key in ("score", "efficacy_success", "paraphrase_success", "neighbourhood_success") if layers else ():
            values = [100 * float(found["metrics"][key]["after"]) for found in layers.values()]
            width = 2.5 if key == "score" else 1.2
            upper.plot(list(layers), values, label=METRICS[key].short, linewidth=width, marker=".")
        upper.set_title(model)
        upper.set_ylabel("after ROME (%)")
        upper.set_ylim(0, 103)
        if layers:
            upper.legend(ncols=4, loc="lower left")
        lower.plot(traced["layers"], (100 * effects).tolist(), color="tab:green")
        lower.set_ylabel("indirect effect (%)")
        lower.set_xlabel("layer (edited above, centre of the restored FFN window below)")
    figure.savefig(path, dpi=150)


PAGE = written(NAME, SCRIPT, model_by_model)
PICTURES = {"localization.png": draw}
TITLE = (__doc__ or "").splitlines()[0]
REPORT = Report(NAME, SCRIPT, TITLE, options, collect, PAGE, of_each_model(digest), PICTURES)

if __name__ == "__main__":
    REPORT.main()
