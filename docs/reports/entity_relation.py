"""docs/entity-relation.md: where are entity and relation read, and which edit bleeds where?

FFN and attention windows restored at the subject's and at the relation's last token, when the one or the other is
hidden ("Relation Also Knows", Liu et al. 2024); and ROME at both tokens, each fact edited alone. Facts whose prompt
ends with its subject are passed over: no token of the relation stands after it.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from drawn import band
from layers import edited
from matplotlib.figure import Figure
from options import FILES, OUTPUTS, Data, Options, asking, deadline_of
from pages import Collected, beside, made, mean
from report import Report
from work import first_records

from corrigenda import Fact, LanguageModel, load, read_facts
from editing import Rome, ValueSettings
from eval import METRICS, EvalSettings, Measurement, measure
from locate import CausalTrace, Noise, UnknownFactError
from locate.pictures import save, ticks_at_layers
from locate.question import Part

NAME, SCRIPT = "entity-relation", "entity_relation.py"
PARTS: tuple[Part, ...] = get_args(Part)
SITES: tuple[Literal["ffn", "attention"], ...] = ("ffn", "attention")
TRACE = CausalTrace(window=6, noise=Noise(samples=5))
SETTINGS = EvalSettings(
    max_new_tokens=5,
    preservation_tokens=5,
    perplexity_windows=0,
    side_effects=True,
    only=("prompt", "paraphrases", "neighbourhood", "same_subject"),
)
NEIGHBOURS = 5
ROME = Rome(prefix_lengths=((10, 2),), value=ValueSettings(confident_steps=2))
"""Fewer contexts and steps than its defaults: it takes a third of the time."""
KEYS = (
    *("efficacy_success", "free_generation_lenient", "paraphrase_success", "paraphrase_free_generation_lenient"),
    *("neighbourhood_success", "answer_kept", "bleed", "neighbourhood_kl"),
    *("answer_kept_same_subject", "bleed_same_subject", "same_subject_kl"),
)
USES = ("editing.Rome", "eval.measure", "locate.CausalTrace")
options = asking(
    *("--model", "--minutes", "--anew"),
    known=(FILES / "known_facts.json", "traced, where the model knows them"),
    data=(FILES / "counterfact.json", "facts that are edited"),
    traced=20,
    facts=20,
    first=(1401, "the first fact that is edited, counted from 1"),
    every=(5, "how many layers lie between windows' centres"),
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected:
    deadline = deadline_of(arguments)
    lm = load(arguments.model)
    work = arguments.work / lm.fingerprint[:8]
    layers, sigma = list(range(0, lm.n_layers, arguments.every)), TRACE.noise.level(lm)
    places = {name: work / name for name in (f"traces-{arguments.every}", "edits")}
    of_traces, of_edits = places.values()
    facts, known = list(read_facts(arguments.data))[arguments.first - 1 :], read_facts(arguments.known)
    traces = first_of(of_traces, known, lambda fact: traced(lm, fact, layers, sigma), arguments.traced, deadline)
    edits = first_of(of_edits, facts, lambda fact: edited_at_both(lm, fact), arguments.facts, deadline)
    figures = {
        **{"layers": layers, "window": min(TRACE.window, lm.n_layers), "samples": TRACE.noise.samples},
        "edited_layers": {part: Rome(position=part).resolved_layer(lm) for part in PARTS},
        **{"data": arguments.data.stem, "first": arguments.first, "traces": traces, "edits": edits},
    }
    return beside(NAME, lm.name, figures, {name: made(place) for name, place in places.items()}, arguments)


def first_of(
    folder: Path, facts: Iterable[Fact], find: Callable[[Fact], dict[str, Any]], n: int, deadline: float | None
) -> list[dict[str, Any]]:
    """What is found of the first n facts whose prompt goes on after the subject and of which something is found."""
    going_on = (fact for fact in facts if not fact.prompt.endswith("{}"))

    def noted(fact: Fact) -> dict[str, Any]:
        return {"id": fact.id, "subject": fact.subject, "found": find(fact)}

    there = first_records(folder, going_on, noted, n, "found", USES, deadline)
    return [{key: record[key] for key in ("id", "subject", "found")} for record in there]


def traced(lm: LanguageModel, fact: Fact, layers: list[int], sigma: float) -> dict[str, Any]:
    """By what is hidden, what is restored and the token, the indirect effects by layer; nothing of an unknown fact."""
    found: dict[str, Any] = {}
    with suppress(UnknownFactError):
        for hidden, site in product(PARTS, SITES):
            trace = replace(TRACE, site=site, hidden=hidden, noise=replace(TRACE.noise, sigma=sigma))
            effects = trace.at_last_tokens(lm, fact, layers=layers).tolist()
            found.setdefault(hidden, {})[site] = dict(zip(PARTS, effects, strict=True))
    return found


def edited_at_both(lm: LanguageModel, fact: Fact) -> dict[str, Any]:
    """By the token of the edit a fact's figures, of those that there are; "before": those of the unedited model."""
    fact = replace(fact, neighbourhood=fact.neighbourhood[:NEIGHBOURS])
    [before] = measure(lm, [fact], SETTINGS)

    def values(one: Measurement) -> dict[str, Any]:
        return {key: one.values[key] for key in KEYS if key in one.values}

    found: dict[str, Any] = {}
    for part in PARTS:
        case = edited(lm, fact, before, replace(ROME, position=part), SETTINGS)
        found |= {"before": values(before), part: {**values(case.after), "error": case.error}}
    return found


def digest(figures: Data) -> dict[str, Any]:
    """Means over facts with intervals: of the effects by layer, of the edits' figures, and of their differences."""
    traces, edits = figures["traces"], [{**one["found"], "name": one["subject"]} for one in figures["edits"]]
    subjects = [one["subject"] for one in traces]
    curves: list[dict[str, Any]] = []
    for hidden, site, part in product(PARTS, SITES, PARTS):
        columns = zip(*(one["found"][hidden][site][part] for one in traces), strict=True)
        means = [mean(column, subjects) for column in columns]
        place = max(range(len(means)), key=lambda n: means[n]["mean"] or 0.0)
        peak = {"layer": figures["layers"][place], **means[place]}
        curves.append({"hidden": hidden, "site": site, "part": part, "layers": means, "peak": peak})
    table: dict[str, dict[str, Any]] = {}
    for key in KEYS:
        there = [one for one in edits if all(key in one[part] for part in PARTS)]
        of, ways = [one["name"] for one in there], (*PARTS, "before") if key in there[0]["before"] else PARTS
        table[key] = {way: mean([one[way][key] for one in there], of, METRICS[key].unit == "%") for way in ways}
        table[key]["difference"] = mean([one["relation"][key] - one["subject"][key] for one in there], of)
        table[key]["n"] = len(there)
    refused = {part: sum(bool(one[part]["error"]) for one in edits) for part in PARTS}
    return {"curves": curves, "table": table, "refused": refused}


def draw(data: Data, path: Path) -> None:
    """The effects by layer: a panel for what is hidden and what is restored, a curve for each token."""
    model, found = next(iter(data["digest"]["models"].items()))
    layers = data["figures"]["models"][model]["layers"]
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    for row, hidden in zip(panels, PARTS, strict=True):
        for axes, site in zip(row, SITES, strict=True):
            for curve in (one for one in found["curves"] if (one["hidden"], one["site"]) == (hidden, site)):
                band(axes, layers, curve["layers"], f"at the {curve['part']}'s last token", 100, marker=".")
            axes.axhline(0, color="gray", linewidth=0.8)
            name = "FFN" if site == "ffn" else site
            axes.set_title(f"{hidden} hidden, {name} restored", fontsize="medium", loc="left")
            ticks_at_layers(axes, layers)
        row[0].set_ylabel("average indirect effect (%)")
    panels[0][0].legend(fontsize="small")
    window = data["figures"]["models"][model]["window"]
    figure.supxlabel(f"centre of the window of {window} layers, {model}", fontsize="medium")
    save(figure, path)


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, pictures={"entity-relation.png": draw}, of_models=True)
if __name__ == "__main__":
    REPORT.main()
