"""The statistics of docs/neurons.md, and its picture."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pages import mean

from eval import paired_test
from locate.neurons.attribution import METHODS

WORDINGS = ("located", "held_out")
AGAINST = {  # sets of neurons, and the one that each is tested against
    **{"integrated_gradients": None, "random": "integrated_gradients", "most active": "integrated_gradients"},
    **{f"{method} top": "integrated_gradients top" for method in METHODS},
    **{"integrated_gradients top": None, "random top": "integrated_gradients top"},
}


def digest(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of the facts."""
    records = figures["facts"]
    sets = [{tuple(place) for place in record["neurons"]["integrated_gradients"]} for record in records]
    frequent, times = Counter(place for places in sets for place in places).most_common(1)[0]
    active = [{tuple(place) for place in record["neurons"]["most active"]} for record in records]
    shared = []
    for record, mine in zip(records, sets, strict=True):
        others = (theirs for other, theirs in zip(records, sets, strict=True) if other["answer"] != record["answer"])
        if mine:
            shared.append(len(mine & set().union(*others)) / len(mine))
    layers = range(len(records[0]["by_layer"]))
    subjects = [record["subject"] for record in records]
    counts = [[float(sum(place[0] == layer for place in places)) for places in sets] for layer in layers]
    return {
        "seconds": fmean(record["seconds_to_locate"] for record in records),
        "relations": Counter(record["relation"] for record in records),
        "counts": [len(places) for places in sets],
        "coarse": fmean(value for record in records for value in record["coarse"]),
        "active": fmean(len(mine & most) / max(1, len(mine)) for mine, most in zip(sets, active, strict=True)),
        "frequent": frequent,
        "times": times,
        "shared": fmean(shared),
        "effects": {name: effects(records, name, other) for name, other in AGAINST.items()},
        "gains": [
            gains(records, factor, control)
            for factor in ("suppress", "enhance")
            for control in ("random", "most active")
        ],
        "by_layer": {
            "neurons": [mean(column, subjects) for column in counts],
            "sums": [fmean(column) for column in zip(*(record["by_layer"] for record in records), strict=True)],
        },
        **of_editors([record for record in records if record["editors"]]),
    }


def relative(records: Sequence[Mapping[str, Any]], where: str, factor: str, name: str) -> list[float]:
    """The relative change of each fact's probability."""
    tables = [record[where][factor] for record in records]
    return [table[name] / table["none"] - 1 for table in tables]


def effects(records: Sequence[Mapping[str, Any]], name: str, other: str | None) -> list[dict[str, Any]]:
    """The mean changes by a set of neurons, and p against another set; suppressed and enhanced, on both wordings."""
    found = []
    for factor in ("suppress", "enhance"):
        for where in WORDINGS:
            values = relative(records, where, factor, name)
            p = None if other is None else paired_test(values, relative(records, where, factor, other))
            found.append(mean(values, [record["subject"] for record in records]) | {"p": p})
    return found


def gains(records: Sequence[Mapping[str, Any]], factor: str, control: str) -> dict[str, Any]:
    """By how much more located neurons do what they should than a control, and for how many facts."""
    parts = []
    for where in WORDINGS:
        sides = (relative(records, where, factor, name) for name in ("integrated_gradients", control))
        values = [(one - other) * (-1 if factor == "suppress" else 1) for one, other in zip(*sides, strict=True)]
        found = mean(values, [record["subject"] for record in records])
        parts.append(found | {"where": where, "wins": sum(value > 0 for value in values)})
    return {"factor": factor, "control": control, "parts": [part for part in parts if part["low"] is not None]}


def of_editors(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the editors did, in means; and which update has most successes, and most with the other answers."""
    subjects = [record["subject"] for record in records]
    columns: list[Callable[[dict[str, Any]], float]] = [
        *(lambda row, of=of: float(row[of][0] > row[of][1]) for of in WORDINGS),
        *(lambda row, at=at: row["located"][at] for at in (0, 1)),
        lambda row: float(row["other_kept"]),
        lambda row: row["other"],
    ]
    found = {
        name: [mean([column(record["editors"][name]) for record in records], subjects, True) for column in columns]
        for name in records[0]["editors"]
    }

    def together(name: str) -> float:
        return harmonic_mean([found[name][place]["mean"] or 0.0 for place in (0, 4)])

    updates = [name for name in found if name.startswith("update ")]
    best = max(updates, key=lambda name: found[name][0]["mean"] or 0.0)
    return {"editors": found, "best": best, "both": max(updates, key=together)}


def draw_layers(data: Mapping[str, Any], path: Path) -> None:
    """For each model the located neurons a fact by layer, with intervals, over the mean sums of attributions."""
    models = data["digest"]["models"]
    figure = Figure(figsize=(1 + 6 * len(models), 4.2), layout="constrained")
    columns = figure.subplots(2, len(models), sharex="col", squeeze=False).T
    for (upper, lower), (model, digested) in zip(columns, models.items(), strict=True):
        found = digested["by_layer"]
        means = [one["mean"] for one in found["neurons"]]
        bounds = [
            (0, 0) if one["low"] is None else (one["mean"] - one["low"], one["high"] - one["mean"])
            for one in found["neurons"]
        ]
        layers = range(len(means))
        upper.bar(layers, means, yerr=np.array(bounds).T, error_kw={"elinewidth": 1, "capsize": 2})
        upper.set_title(f"{model}: knowledge neurons of {len(digested['counts'])} facts", fontsize="medium")
        upper.set_ylabel("neurons a fact")
        lower.bar(layers, found["sums"], color="tab:red")
        lower.axhline(0, color="black", linewidth=0.6)
        lower.set_ylabel("sum of attributions")
        lower.set_xlabel("layer")
    figure.savefig(path, dpi=150)
