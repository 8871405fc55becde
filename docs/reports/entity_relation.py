"""docs/entity-relation.md: where are entity and relation read, and which edit bleeds where?

FFN and attention windows restored at the subject's and at the relation's last token, when the one or the other is
hidden ("Relation Also Knows", Liu et al. 2024); and ROME at both tokens, each fact edited alone.

    python docs/reports/entity_relation.py collect [--traced 20] [--facts 20] [--minutes 5]
    python docs/reports/entity_relation.py page

What is finished is kept in the work folder, and the first command goes on where it was stopped; `pages.py` says more
of the steps. Facts whose prompt ends with its subject are passed over: no token of the relation stands after it.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal, get_args

from layers import edited
from matplotlib.figure import Figure
from pages import ROOT, Collected, Report, beside, keeping_option, made, making, mean, model_by_model, of_each_model
from words import written

from corrigenda import Fact, LanguageModel, load
from corrigenda.data import read_facts
from corrigenda.runs.folder import RunFolder
from editing import Rome, ValueSettings
from eval import METRICS, Case, EvalSettings, measure
from locate import CausalTrace, Noise, UnknownFactError
from locate.pictures import save, ticks_at_layers
from locate.question import Part

NAME, SCRIPT = "entity-relation", "entity_relation.py"
DATA = ROOT.parent / "shared" / "data"
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
"""What the figures are made with: their code version is of the files of these."""


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--known", default=str(DATA / "known_facts.json"), help="traced, where the model knows them")
    parser.add_argument("--data", default=str(DATA / "counterfact.json"), help="facts that are edited")
    parser.add_argument("--traced", type=int, default=20)
    parser.add_argument("--facts", type=int, default=20)
    parser.add_argument("--first", type=int, default=1401, help="the first fact that is edited, counted from 1")
    parser.add_argument("--every", type=int, default=5, help="how many layers lie between windows' centres")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop (to go on later) after so long")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "entity-relation")
    keeping_option(parser)


def collect(arguments: argparse.Namespace) -> Collected | None:
    """Traces and edits; None where the time was up before all was done."""
    deadline = time.monotonic() + 60 * arguments.minutes
    lm = load(arguments.model)
    work = arguments.work / lm.fingerprint[:8]
    layers, sigma = list(range(0, lm.n_layers, arguments.every)), TRACE.noise.level(lm)
    traces = kept(
        work / f"traces-{arguments.every}",
        going_on(read_facts(arguments.known)),
        lambda fact: traced(lm, fact, layers, sigma),
        arguments.traced,
        deadline,
    )
    facts = islice(going_on(list(read_facts(arguments.data))[arguments.first - 1 :]), arguments.facts)
    edits = kept(work / "edits", facts, lambda fact: edited_at_both(lm, fact), arguments.facts, deadline)
    if traces is None or edits is None:
        return None
    figures = {
        "layers": layers,
        "window": min(TRACE.window, lm.n_layers),
        "samples": TRACE.noise.samples,
        "edited_layers": {part: Rome(position=part).resolved_layer(lm) for part in PARTS},
        "data": Path(arguments.data).stem,
        "first": arguments.first,
        "traces": traces,
        "edits": edits,
    }
    return beside(
        NAME, lm.name, figures, {each: made(work / each) for each in (f"traces-{arguments.every}", "edits")}, arguments
    )


def going_on(facts: Iterable[Fact]) -> Iterator[Fact]:
    """The facts whose prompt goes on after the subject."""
    return (fact for fact in facts if not fact.prompt.endswith("{}"))


def kept(
    folder: Path, facts: Iterable[Fact], find: Callable[[Fact], dict[str, Any]], n: int, deadline: float
) -> list[dict[str, Any]] | None:
    """What is found of the first n facts of which something is, each kept in a folder; None where the time was up."""
    runs = RunFolder(folder)
    records = {record["id"]: record for record in runs.cases()}
    found: list[dict[str, Any]] = []
    for fact in facts:
        if len(found) == n:
            break
        if fact.id not in records:
            if time.monotonic() > deadline:
                return None
            with making(folder, USES):
                records[fact.id] = {"id": fact.id, "subject": fact.subject, "found": find(fact)}
                runs.append(records[fact.id])
        if records[fact.id]["found"]:
            found.append({key: records[fact.id][key] for key in ("id", "subject", "found")})
    return found


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
    """By the token of the edit a fact's figures; "before": those of the unedited model."""
    fact = replace(fact, neighbourhood=fact.neighbourhood[:NEIGHBOURS])
    [before] = measure(lm, [fact], SETTINGS)
    found: dict[str, Any] = {}
    for part in PARTS:
        case = edited(lm, fact, before, replace(ROME, position=part), SETTINGS)
        found["before"], found[part] = values(case, "before"), {**values(case, "after"), "error": case.error}
    return found


def values(case: Case, when: Literal["before", "after"]) -> dict[str, float]:
    """A fact's figures, by key; of those that there are."""
    found = getattr(case, when).values
    return {key: found[key] for key in KEYS if key in found}


# -- the statistics and the picture


def digest(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Means over facts with intervals: of the effects by layer, of the edits' figures, and of their differences."""
    traces, edits = figures["traces"], [{**one["found"], "name": one["subject"]} for one in figures["edits"]]
    subjects = [one["subject"] for one in traces]
    curves: list[dict[str, Any]] = [
        {
            "hidden": hidden,
            "site": site,
            "part": part,
            "layers": [
                mean(column, subjects) for column in zip(*(t["found"][hidden][site][part] for t in traces), strict=True)
            ],
        }
        for hidden in PARTS
        for site in SITES
        for part in PARTS
    ]
    for curve in curves:
        place = max(range(len(curve["layers"])), key=lambda n: curve["layers"][n]["mean"])
        curve["peak"] = {"layer": figures["layers"][place], **curve["layers"][place]}
    table: dict[str, dict[str, Any]] = {}
    for key in KEYS:
        there = [one for one in edits if all(key in one[part] for part in PARTS)]
        of, ways = [one["name"] for one in there], (*PARTS, "before") if key in there[0]["before"] else PARTS
        table[key] = {way: mean([one[way][key] for one in there], of, METRICS[key].unit == "%") for way in ways}
        table[key]["difference"] = mean([one["relation"][key] - one["subject"][key] for one in there], of)
        table[key]["n"] = len(there)
    refused = {part: sum(bool(one[part]["error"]) for one in edits) for part in PARTS}
    return {"curves": curves, "table": table, "refused": refused}


def draw(data: Mapping[str, Any], path: Path) -> None:
    """The effects by layer: a panel for what is hidden and what is restored, a curve for each token."""
    model, found = next(iter(data["digest"]["models"].items()))
    layers = data["figures"]["models"][model]["layers"]
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    for row, hidden in zip(panels, PARTS, strict=True):
        for axes, site in zip(row, SITES, strict=True):
            for curve in found["curves"]:
                if (curve["hidden"], curve["site"]) != (hidden, site):
                    continue
                middle, low, high = ([100 * one[of] for one in curve["layers"]] for of in ("mean", "low", "high"))
                [line] = axes.plot(layers, middle, marker=".", label=f"at the {curve['part']}'s last token")
                axes.fill_between(layers, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
            axes.axhline(0, color="gray", linewidth=0.8)
            name = "FFN" if site == "ffn" else site
            axes.set_title(f"{hidden} hidden, {name} restored", fontsize="medium", loc="left")
            ticks_at_layers(axes, layers)
        row[0].set_ylabel("average indirect effect (%)")
    panels[0][0].legend(fontsize="small")
    window = data["figures"]["models"][model]["window"]
    figure.supxlabel(f"centre of the window of {window} layers, {model}", fontsize="medium")
    save(figure, path)


PAGE = written(NAME, SCRIPT, model_by_model)
PICTURES = {"entity-relation.png": draw}
REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, PAGE, of_each_model(digest), PICTURES)

if __name__ == "__main__":
    REPORT.main()
