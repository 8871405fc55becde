"""docs/localization.md: does locating a fact say where to edit it?

ROME at every layer on the same facts, each edited alone from the clean model; beside it, causal tracing of the first
facts that the model knows ("Does Localization Inform Editing?", Hase et al. 2023).
"""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from options import FILES, OUTPUTS, Data, Options, asking, deadline_of
from pages import Collected, beside, made
from report import Report
from runs import without_generation
from work import records

from corrigenda import Fact, LanguageModel, load, read_facts
from editing import EditRefusedError, Rome
from editing.locate_then_edit.moments import moments_of
from eval import METRICS, Case, EvalSettings, Evaluation, Measurement, judged, measure
from eval.measure import on_windows
from eval.scoring.held_out import in_turn
from eval.statistics.paired import harmonic_mean
from eval.statistics.ranks import partial_rank_correlation, rank_correlation
from locate import CausalTrace, UnknownFactError

NAME, SCRIPT = "localization", "layers.py"
SETTINGS = EvalSettings(max_new_tokens=10)
KEYS = (
    *("efficacy_success", "paraphrase_success", "neighbourhood_success", "score", "preservation"),
    *("neighbourhood_kl", "perplexity_drift"),
)
PARTS = METRICS["score"].parts
USES = ("editing.Rome", "eval.evaluation", "eval.measure", "locate.CausalTrace")
TRACE = CausalTrace(site="ffn")
RESAMPLES = 2000
Array: TypeAlias = NDArray[np.float64]
options = asking(
    *("--model", "--minutes", "--anew"),
    data=FILES / "counterfact.json",
    facts=(20, "how many are edited at every layer"),
    traced=(24, "how many facts that the model knows are traced"),
    contexts=(0, "of ROME, of 10 tokens; by default ROME's own"),
    dtype=("float32", "of the model, e.g. bfloat16"),
    work=OUTPUTS / "layers",
)


def collect(arguments: Options) -> Collected:
    deadline, n = deadline_of(arguments), arguments.contexts
    lm = load(arguments.model, dtype=arguments.dtype)
    work = arguments.work / lm.fingerprint[:8]  # what was found of another model is not this one's
    traces, unknown = traces_of(lm, read_facts(arguments.data), arguments.traced, work / "effects", deadline)
    facts = without_generation(read_facts(arguments.data, limit=arguments.facts))
    editor = Rome(prefix_lengths=((10, n),)) if n else Rome()
    # What was edited with other contexts is kept apart.
    folders = {layer: work / f"{f'contexts-{n}-' if n else ''}layer-{layer:02d}" for layer in range(lm.n_layers)}

    @cache
    def before() -> list[Measurement]:
        # Of all layers at once, from one run of the text.
        moments_of("ROME", lm, range(lm.n_layers), editor.text, editor.tokens_per_coefficient)
        return measure(lm, facts, SETTINGS)

    def of_fact(fact: Fact, layer: int) -> dict[str, Any]:
        place = facts.index(fact)
        unedited = on_windows(before()[place], in_turn(place, SETTINGS))
        return edited(lm, fact, unedited, replace(editor, layer=layer)).to_dict()

    cases = {
        layer: [*map(Case.from_dict, records(folders[layer], facts, partial(of_fact, layer=layer), USES, deadline))]
        for layer in sorted(folders, key=lambda layer: layer % 3)  # so a stopped run has the whole range already
    }
    effects = [trace["effects"] for trace in traces]  # of each fact at the last subject token, by layer
    figures = {
        "n_layers": lm.n_layers,
        "contexts": n or None,
        "dtype": arguments.dtype,
        "default_layer": Rome().resolved_layer(lm),
        "subjects": [fact.subject for fact in facts],
        "layers": {layer: of_layer(cases[layer]) for layer in folders},
        "traced": {
            "of": arguments.data.stem,
            "unknown": unknown,
            "layers": list(folders),
            "peak": int(np.mean(effects, axis=0).argmax()),
            "window": min(TRACE.window, lm.n_layers),
            "subjects": [trace["subject"] for trace in traces],
            "effects": effects,
        },
    }
    runs = {f"layer {layer}": made(folder) for layer, folder in folders.items()} | {"traces": made(work / "effects")}
    return beside(NAME, lm.name, figures, runs, arguments)


def of_layer(cases: Sequence[Case]) -> dict[str, Any]:
    """The figures of a layer, and each fact's part of S."""
    metrics, parts = Evaluation(tuple(cases)).metrics, ("after", "low", "high")
    return {
        "metrics": {key: {part: metrics[key][part] for part in parts} for key in KEYS if key in metrics},
        "facts": {key: [case.after.values[key] for case in cases] for key in PARTS},
        "failed": sum(bool(case.error) for case in cases),
    }


def edited(lm: LanguageModel, fact: Fact, before: Measurement, editor: Rome, settings: EvalSettings = SETTINGS) -> Case:
    """One fact edited alone at one layer, and scored."""
    begin, edit, error = time.perf_counter(), None, ""
    try:
        edit = editor.edit(lm, [fact])
    except EditRefusedError as refusal:
        error = f"refused: {refusal}"
    seconds = time.perf_counter() - begin
    with edit.applied(lm) if edit else nullcontext():
        [after] = measure(lm, [fact], settings, [before])
    return judged(fact, before, after, dict(edit.origin.report[0]) if edit else None, seconds, error)


def traces_of(
    lm: LanguageModel, facts: Iterable[Fact], n: int, folder: Path, deadline: float | None
) -> tuple[list[Data], int]:
    """FFN windows traced for the first n facts that the model knows; and how many before them it does not know."""
    # A fact whose subject ends its prompt is passed over: there the subject's last token is the one that answers.
    going_on = (fact for fact in facts if not fact.prompt.endswith("{}"))
    traces: list[Data] = []
    unknown = 0
    for record in records(folder, going_on, partial(traced, lm), USES, deadline):
        traces += [record] if "effects" in record else []
        unknown += "effects" not in record
        if len(traces) == n:
            break
    return traces, unknown


def traced(lm: LanguageModel, fact: Fact) -> dict[str, Any]:
    """The indirect effects at a fact's last subject token, by layer; none where the model does not know it."""
    record: dict[str, Any] = {"id": fact.id, "subject": fact.subject}
    with suppress(UnknownFactError):
        record["effects"] = TRACE.at_last_subject(lm, fact, layers=range(lm.n_layers)).tolist()
    return record


def correlations(facts: Array, effects: Array, layers: Sequence[int]) -> tuple[float, float, float]:
    """Over layers Spearman's r of S and the mean effect, of S and the layer, and of S and the effect given it."""
    # Of the parts of S of edited facts, (layer, part, fact), and the effects of traced ones, (fact, layer).
    scores, effect = harmonic_mean(*facts.mean(axis=2).T), effects.mean(axis=0)
    return (
        rank_correlation(scores, effect),
        rank_correlation(scores, layers),
        partial_rank_correlation(scores, effect, layers),
    )


def bootstrapped(
    facts: Array, subjects: Sequence[str], effects: Array, traced_subjects: Sequence[str], layers: Sequence[int]
) -> list[list[float] | None]:
    """95 % percentile intervals of `correlations`, over edited and traced facts."""
    # Subjects of the edited facts and of the traced facts are drawn anew, each with replacement, 2,000 times. The
    # layers stay: they are all that the model has. None where fewer than nine of ten draws have a number.
    draw = np.random.default_rng(0)
    found = np.full((RESAMPLES, 3), math.nan)
    for row in found:
        mine, traced = _drawn(subjects, draw), _drawn(traced_subjects, draw)
        row[:] = correlations(facts[:, :, mine], effects[traced], layers)
    return [
        np.quantile(numbers, [0.025, 0.975]).tolist() if len(numbers) >= 0.9 * RESAMPLES else None
        for numbers in (column[np.isfinite(column)] for column in found.T)
    ]


def _drawn(subjects: Sequence[str], draw: np.random.Generator) -> list[int]:
    """The places of the facts of as many subjects as there are, drawn with replacement."""
    places: dict[str, list[int]] = {}
    for place, subject in enumerate(subjects):
        places.setdefault(subject, []).append(place)
    named = [*places.values()]
    return [place for number in draw.integers(len(named), size=len(named)) for place in named[number]]


def digest(figures: Data) -> dict[str, Any]:
    """`correlations`, each with its interval, None where it is not defined; and the layer with the highest S."""
    layers, traced = {int(layer): found for layer, found in figures["layers"].items()}, figures["traced"]
    facts = np.array([[found["facts"][key] for key in PARTS] for found in layers.values()])
    effects = np.array(traced["effects"])
    values = correlations(facts, effects, list(layers))
    bounds = bootstrapped(facts, figures["subjects"], effects, traced["subjects"], list(layers))
    pairs = zip(values, bounds, strict=True)
    return {
        "correlations": [{"value": None if math.isnan(value) else value, "interval": bound} for value, bound in pairs],
        "best": max(layers, key=lambda layer: layers[layer]["metrics"]["score"]["after"]),
    }


def draw(data: Data, path: Path) -> None:
    """For each model S, ES, PS and NS by edited layer, over the indirect effect by traced layer."""
    models = data["figures"]["models"]
    figure = Figure(figsize=(1 + 6 * len(models), 5), layout="constrained")
    columns = figure.subplots(2, len(models), sharex="col", height_ratios=[2, 1], squeeze=False).T
    for (upper, lower), (model, figures) in zip(columns, models.items(), strict=True):
        traced, found = figures["traced"], figures["layers"].values()
        effects = np.mean(traced["effects"], axis=0)
        for key in ("score", "efficacy_success", "paraphrase_success", "neighbourhood_success"):
            values = [100 * float(one["metrics"][key]["after"]) for one in found]
            width = 2.5 if key == "score" else 1.2
            upper.plot([*map(int, figures["layers"])], values, label=METRICS[key].short, linewidth=width, marker=".")
        upper.set(title=model, ylabel="after ROME (%)", ylim=(0, 103))
        upper.legend(ncols=4, loc="lower left")
        lower.plot(traced["layers"], (100 * effects).tolist(), color="tab:green")
        lower.set(ylabel="indirect effect (%)", xlabel="layer (edited above, centre of the restored FFN window below)")
    figure.savefig(path, dpi=150)


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, pictures={"localization.png": draw}, of_models=True)
if __name__ == "__main__":
    REPORT.main()
