"""Writes docs/localization.md: does locating a fact say where to edit it?

ROME at every layer on the same facts, each edited alone from the clean model; beside it, causal tracing of the first
facts that the model knows ("Does Localization Inform Editing?", Hase et al. 2023).

    python docs/reports/layers.py [--facts 20] [--layers 0,3,6] [--minutes 8] [--work outputs/layers]

What is finished is kept in the work folder. The command goes on where it was stopped. It writes the page when every
layer asked for is done.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure
from scipy.stats import spearmanr

from corrigenda import Fact, LanguageModel, load
from corrigenda.data import read_facts
from corrigenda.runs.folder import RunFolder
from editing import EditRefusedError, Rome
from eval import METRICS, Case, EvalSettings, Evaluation, Measurement, judged, measure
from eval.held_out import in_turn
from eval.measure import on_windows
from eval.metrics.unit import Unit
from locate import AverageTrace, CausalTrace, Trace, UnknownFactError, average, suggest_layers

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = EvalSettings(max_new_tokens=10)
# The headings of the page; units are the metrics' own.
COLUMNS = {
    "efficacy_success": "ES",
    "paraphrase_success": "PS",
    "neighbourhood_success": "NS",
    "score": "S",
    "preservation": "preservation",
    "neighbourhood_kl": "neighbourhood KL",
    "perplexity_drift": "perplexity drift",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", default=str(ROOT.parent / "shared" / "data" / "counterfact.json"))
    parser.add_argument("--facts", type=int, default=20)
    parser.add_argument("--layers", default="", help="comma-separated; by default all")
    parser.add_argument("--traced", type=int, default=10, help="how many facts that the model knows are traced")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop (to go on later) after so long")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "layers")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    lm = load(arguments.model)
    work = arguments.work / lm.fingerprint[:8]  # what was found of another model is not this one's
    facts = [replace(fact, generation=()) for fact in read_facts(arguments.data, limit=arguments.facts)]
    # Every third layer first, so that a stopped run has the whole range already.
    layers = [int(layer) for layer in arguments.layers.split(",") if layer] or [
        layer for first in range(3) for layer in range(first, lm.n_layers, 3)
    ]
    before: list[Measurement] = []
    for layer in layers:
        folder = RunFolder(work / f"layer-{layer:02d}")
        done = {record["id"] for record in folder.cases()}
        if done >= {fact.id for fact in facts}:
            continue
        before = before or measure(lm, facts, SETTINGS)
        for place, (fact, old) in enumerate(zip(facts, before, strict=True)):
            if fact.id not in done:
                windows = in_turn(place, SETTINGS)
                folder.append(edited(lm, fact, on_windows(old, windows), layer).to_dict())
            if time.monotonic() > deadline:
                return
    candidates = list(read_facts(arguments.data, limit=100 * arguments.traced))
    average_trace, traced, unknown = traced_together(lm, candidates, arguments.traced, work, deadline)
    if average_trace is not None:
        write(lm, facts, sorted(layers), work, average_trace, traced, unknown)


def edited(lm: LanguageModel, fact: Fact, before: Measurement, layer: int) -> Case:
    """One fact edited alone at one layer, and scored."""
    begin = time.perf_counter()
    try:
        edit = Rome(layer=layer).edit(lm, [fact])
    except EditRefusedError as refusal:
        [after] = measure(lm, [fact], SETTINGS, [before])
        return judged(fact, before, after, None, time.perf_counter() - begin, f"refused: {refusal}")
    seconds = time.perf_counter() - begin
    with edit.applied(lm):
        [after] = measure(lm, [fact], SETTINGS, [before])
    return judged(fact, before, after, dict(edit.origin.report[0]), seconds)


def traced_together(
    lm: LanguageModel, facts: list[Fact], n: int, work: Path, deadline: float
) -> tuple[AverageTrace | None, list[Trace], int]:
    """FFN windows traced for the first n facts that the model knows; and how many before them it does not."""
    traces: list[Trace] = []
    unknown = 0
    for fact in facts:
        if len(traces) == n:
            break
        folder = work / "traces" / fact.id
        if not (folder / "trace.json").is_file():
            try:
                CausalTrace(site="ffn").find(lm, fact).save(folder)
            except UnknownFactError:
                unknown += 1
                continue
        traces.append(Trace.load(folder))
        if time.monotonic() > deadline:
            return None, [], 0
    return average(traces), traces, unknown


def write(
    lm: LanguageModel,
    facts: list[Fact],
    layers: list[int],
    work: Path,
    average_trace: AverageTrace,
    traced: list[Trace],
    unknown: int,
) -> None:
    """The page and its picture."""
    found = {}
    for layer in layers:
        records = {record["id"]: record for record in RunFolder(work / f"layer-{layer:02d}").cases()}
        found[layer] = Evaluation(tuple(Case.from_dict(records[fact.id]) for fact in facts)).metrics
    [peak] = suggest_layers(average_trace)
    scores = {layer: float(metrics["score"]["after"]) for layer, metrics in found.items()}  # CounterFact has all parts
    best = max(scores, key=lambda layer: scores[layer])
    default = Rome().resolved_layer(lm)
    draw(found, average_trace, ROOT / "docs" / "figures" / "localization.png")
    lines = [
        "# Does locating a fact say where to edit it?",
        "",
        f"Made by `python docs/reports/layers.py --facts {len(facts)} --traced {len(traced)}",
        f"--layers {','.join(map(str, layers))}` with {lm.name}.",
        "",
        f"ROME's defaults at these layers, on the first {len(facts)} facts of CounterFact. Each fact is edited",
        "alone, from the clean model (free answers of 10 tokens). FFN windows were traced for the first",
        f"{len(traced)} facts of CounterFact that the model knows: its most likely next token is the right one. Of the",
        f"facts before the last of these, the model does not know {unknown}.",
        "",
        "![S by layer, and the indirect effect of FFN windows](figures/localization.png)",
        "",
        f"- At the last subject token, tracing has its peak at layer **{peak}**. `editor.layer=auto` takes this layer.",
        f"- The best S is at layer **{best}** ({100 * scores[best]:.1f} %); "
        + "; ".join(
            f"at {name} {layer} it is " + (f"{100 * scores[layer]:.1f} %" if layer in scores else "not known")
            for name, layer in (("the tracing peak", peak), ("ROME's default layer", default))
        )
        + ".",
        f"- The rank correlation of S with the indirect effect, over the {len(scores)} layers, is "
        f"{correlation(scores, average_trace):.2f}.",
        "",
        "| layer | " + " | ".join(COLUMNS.values()) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    for layer, metrics in found.items():
        cells = [_cell(metrics.get(key), METRICS[key].written) for key in COLUMNS]
        marks = " ".join(mark for mark, at in (("(peak)", peak), ("(default)", default)) if at == layer)
        lines.append(f"| {layer} {marks} | " + " | ".join(cells) + " |")
    lines += ["", "After the edit, with the 95 % bootstrap interval over facts. Rates in %, KL and drift in nats.", ""]
    (ROOT / "docs" / "localization.md").write_text("\n".join(lines), encoding="utf-8")


def correlation(scores: dict[int, float], traced: AverageTrace) -> float:
    """Spearman's rank correlation between S at a layer and the indirect effect there."""
    effects = traced.layer_scores().tolist()
    return float(spearmanr(list(scores.values()), [effects[layer] for layer in scores]).statistic)


def _cell(values: dict[str, float | int | None] | None, unit: Unit) -> str:
    if values is None or values["after"] is None:
        return ""
    text = unit.text(values["after"])
    if values["low"] is not None and values["high"] is not None:
        text += f" [{unit.text(values['low'])}, {unit.text(values['high'])}]"
    return text


def draw(found: dict[int, dict[str, dict[str, float | int | None]]], traced: AverageTrace, path: Path) -> None:
    """S, ES, PS and NS by edited layer, over the indirect effect by traced layer."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for key in ("score", "efficacy_success", "paraphrase_success", "neighbourhood_success"):
        values = [100 * float(metrics[key]["after"]) for metrics in found.values()]
        upper.plot(list(found), values, label=COLUMNS[key], linewidth=2.5 if key == "score" else 1.2, marker=".")
    upper.set_ylabel("after ROME (%)")
    upper.set_ylim(0, 103)
    upper.legend(ncols=4, loc="lower left")
    effect = 100 * traced.layer_scores()
    lower.plot(range(len(effect)), effect.tolist(), color="tab:green")
    lower.set_ylabel("indirect effect (%)")
    lower.set_xlabel("layer (edited above, centre of the restored FFN window below)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
