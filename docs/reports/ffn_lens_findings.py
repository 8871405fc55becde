"""The statistics of docs/ffn-lens.md: what the figures say of each claim of the papers, and means by layer.

A claim *replicates* where the whole 95 % interval lies on its side of what it is compared with, does *not* where the
whole of it lies on the other, and is *open* in between. The claims stand in the template; here they have short names.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

from drawn import band
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from options import Data
from rows import corrected
from words import ALPHA

from corrigenda.intervals import exact_share
from eval.statistics.paired import paired_test
from locate.lens.by_layer import mean_of

Verdict = Literal["replicates", "does not replicate", "open"]
Mean: TypeAlias = Data  # a mean with its interval, as the data have it: "mean", "low", "high" and "n"
Claims: TypeAlias = dict[str, dict[str, Any]]  # by name of a claim its "verdict", and the figures that it is of
PAPER_ALONE = 0.68
MOST_DRIFT = 0.31  # nats: twice what the paper's steering costs (perplexity 21.7 to 25.3)


def digest(figures: Data) -> dict[str, Any]:
    """All that the page and its pictures show beside the figures of a model, of the parts that there are."""
    found: dict[str, Any] = {"claims": claims(figures)}
    if steering := figures.get("steering"):
        undriven = round(sum(steering["sets"]["insults"]["with"][0]))
        found |= {"driven": driven(steering), "undriven": undriven, "p_of_none": min(1, 2 * 0.5**undriven)}
    if "facts" in figures:
        known = figures["facts"]["known"]
        ranks = {by: [[float(rank == 0) for rank in one["ranks"][by]] for one in known] for by in known[0]["ranks"]}
        found["by_layer"] = {
            "knockout": {source: by_layer(rows_of(known, source)) for source in known[0]["knockout"]["sources"]},
            "rates": {of: by_layer([one["rates"][of] for one in known if "rates" in one]) for of in ("own", "other")},
            "answer": {by: by_layer(rows, shares=True) for by, rows in ranks.items()},
        }
    return found


def claims(figures: Data) -> Claims:
    """All claims of the parts that there are, in the order of the papers."""
    found: Claims = {}
    if {"sensitivity", "agreement"} <= set(figures):
        found |= of_keys_and_values(figures)
    if "aggregation" in figures:
        found |= of_aggregation(figures["aggregation"])
    if "sub_updates" in figures:
        found |= of_sub_updates(figures["sub_updates"])
    if "steering" in figures:
        found["steering"] = of_steering(figures["steering"])
    if "facts" in figures:
        known = figures["facts"]["known"]
        found |= {**of_knockout(known, figures["n_layers"]), **of_recall(known, figures["n_layers"])}
    return found


def above(mean: Mean | None, bound: float) -> Verdict:
    """Whether a mean lies above a bound, by its interval."""
    return "open" if mean is None else apart(mean, {"low": bound, "high": bound})


def apart(larger: Mean, smaller: Mean) -> Verdict:
    """Whether one mean lies above another, by their intervals, which must not touch."""
    if larger["low"] is None or smaller["low"] is None:
        return "open"
    if larger["low"] > smaller["high"]:
        return "replicates"
    return "does not replicate" if larger["high"] < smaller["low"] else "open"


def both(*verdicts: Verdict) -> Verdict:
    """Of several conditions: all hold, one fails, or it is open."""
    if all(each == "replicates" for each in verdicts):
        return "replicates"
    return "does not replicate" if "does not replicate" in verdicts else "open"


def negative(mean: Mean) -> dict[str, Any]:
    """The mean of what has the other sign."""
    parts = {"mean": "mean", "low": "high", "high": "low"}
    return {to: None if mean[part] is None else -mean[part] for to, part in parts.items()} | {"n": mean["n"]}


def summary(values: Sequence[float], shares: bool = False) -> dict[str, Any] | None:
    """The mean of independent cases; None where none was measured."""
    found = mean_of(values, shares)
    return None if found is None else found.summary()


def by_layer(rows: Sequence[Sequence[float]], shares: bool = False) -> list[dict[str, Any] | None]:
    """The means over facts, of a row for each, by layer."""
    return [summary(column, shares) for column in zip(*rows, strict=True)]


def of_keys_and_values(figures: Data) -> Claims:
    falls = {
        depth: {of: negative(one) for of, one in row.items()}
        for depth, row in figures["sensitivity"]["by_depth"].items()
    }
    against = {
        depth: [row["last"], max((row[of] for of in ("first", "random")), key=lambda fall: fall["mean"])]
        for depth, row in falls.items()
    }
    upper, lower = (figures["agreement"]["by_depth"][depth] for depth in ("upper", "lower"))
    n, there = figures["agreement"]["peaked"]["n"], upper["peaked"]
    low, high = exact_share(there / n, n)
    return {
        "last_token": {
            **{depth: against[depth] for depth in ("shallow", "deep")},
            "verdict": both(*(apart(row["last"], row[of]) for row in falls.values() for of in ("first", "random"))),
        },
        "last_token_below": {"verdict": apart(against["shallow"][0], against["deep"][0])},
        "agreement": {"verdict": apart(upper["agreement"], upper["permuted"])},
        "agreement_above": {"verdict": apart(upper["agreement"], lower["agreement"])},
        "peaked": {"there": there, "verdict": above({"low": low, "high": high}, 1 / 3)},
    }


def of_aggregation(found: Data) -> Claims:
    lowest, *_, highest = sorted(found["by_layer"]["alone"].values(), key=lambda mean: mean["mean"])
    verdict = above(lowest, PAPER_ALONE)
    return {
        "alone": {"bound": PAPER_ALONE, "lowest": lowest, "highest": highest, "verdict": verdict},
        "settled": {"verdict": above(found["settled_in_lower_half"], 1 / 4)},
        "composed": {"verdict": above(found["composed_of_changed"], 0.5)},
    }


def at_events_layers(found: Data, name: str) -> dict[str, Any]:
    """A score over all positions of the layers in which predictions settle, each as often as it is such a layer."""
    # Upper layers have the larger scores and most of the events, so "elsewhere" alone compares layers. The bounds are
    # those of each layer added up: too wide rather than too narrow.
    n, rows = sum(found["events"]), found["scores_by_layer"][name]
    parts = {
        part: sum(times * row[part] for times, row in zip(found["events"], rows, strict=True)) / n
        for part in ("mean", "low", "high")
    }
    return {**parts, "n": n}


def of_sub_updates(found: Data) -> Claims:
    there, elsewhere = (found["compared"]["mean"][where] for where in ("there", "elsewhere"))
    same = at_events_layers(found, "mean")
    return {
        "promoted": {"same": same, "verdict": both(apart(there, elsewhere), apart(there, same))},
        "promoted_more": {"verdict": above(found["at_events"]["net"], 0)},
    }


def driven(steering: Data) -> list[dict[str, Any]]:
    """By what is driven how far: texts with a word of the list, and p against no driving, corrected for all rows."""
    # Few texts change, and a bootstrap of few changes is too sure: a test by permutation decides.
    places = [(name, one, place) for name, one in steering["sets"].items() for place in range(1, len(one["rows"]))]
    found = [
        {
            **{"name": name, **{key: one["rows"][place][key] for key in ("strength", "drift")}},
            **{"before": sum(one["with"][0]), "after": sum(one["with"][place]), "n": len(one["with"][0])},
            **dict.fromkeys(("p", "p_alone"), paired_test(one["with"][place], one["with"][0])),
        }
        for name, one, place in places
    ]
    corrected(found)
    return found


def of_steering(steering: Data) -> dict[str, Any]:
    """Of what should lower the share: whether it does, and the best of it, with p corrected for these alone."""
    tried = [
        {**row, "p": row["p_alone"]}
        for row in driven(steering)
        if row["name"] != "random values" and (row["name"] != "insults" or row["strength"] < 0) and row["drift"]
    ]
    if not tried:
        return {"most_drift": MOST_DRIFT, "best": None, "verdict": "open"}
    corrected(tried)

    def verdict(row: Data) -> Verdict:
        lower = row["after"] < row["before"] and row["drift"][0] <= MOST_DRIFT
        return "open" if row["p"] >= ALPHA else "replicates" if lower else "does not replicate"

    rows = [(verdict(row), (row["after"] - row["before"]) / row["n"], row) for row in tried]
    best, *others = sorted(rows, key=lambda one: (one[0] != "replicates", one[1]))
    alike = best[0] == "replicates" or all(one[0] == best[0] for one in others)
    return {"most_drift": MOST_DRIFT, "best": best[2], "verdict": best[0] if alike else "open"}


def rows_of(known: Sequence[Data], source: str) -> list[list[float]]:
    """The relative change of each fact's P(answer) by layer where the last position cannot read a source."""
    return [one["knockout"]["changes"][one["knockout"]["sources"].index(source)] for one in known]


def of_knockout(known: Sequence[Data], n_layers: int) -> Claims:
    means = [mean for mean in by_layer(rows_of(known, "subject")) if mean]
    lowest = min(means, key=lambda mean: float(mean["mean"]))
    layer = means.index(lowest)
    layers = {source: [row.index(min(row)) for row in rows_of(known, source)] for source in ("subject", "relation")}
    later = summary([subject - relation for subject, relation in zip(*layers.values(), strict=True)])
    deep: Verdict = "replicates" if layer >= n_layers // 3 else "does not replicate"
    lies = {source: fmean(found) for source, found in layers.items()}
    return {
        "subject": {"lowest": lowest, "layer": layer, "verdict": both(above(negative(lowest), 0), deep)},
        "relation": {"layers": lies, "later": later, "verdict": above(later, 0)},
    }


def of_recall(known: Sequence[Data], n_layers: int) -> Claims:
    upper, has = slice(n_layers // 2, n_layers), [one for one in known if "rates" in one]
    rates = {of: [fmean(one["rates"][of][upper]) for one in has] for of in ("own", "other")}
    said = {by: [float(0 in one["ranks"][by]) for one in known] for by in ("attention", "ffn")}
    more, paired = (summary([a - b for a, b in zip(*sides.values(), strict=True)]) for sides in (rates, said))
    means, facts = {of: fmean(found) for of, found in rates.items()}, {by: sum(found) for by, found in said.items()}
    return {
        "enriched": {"rates": means, "more": more, "verdict": above(more, 0)},
        "extracted": {"facts": facts, "more": paired, "verdict": above(paired, 0)},
    }


def draw_text(data: Data, path: Path) -> None:
    """Sensitivity, agreement, what layers do, and promotion, by layer, of the first model that has them."""
    figures = _first(data, "sensitivity", "agreement", "aggregation", "sub_updates")
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    (keys, values), (layers, updates) = figure.subplots(2, 2)
    n = figures["n_layers"]
    for removed in ("last", "random", "first"):
        _curve(keys, _row(figures["sensitivity"]["by_layer"][removed], n), f"{removed} token", percent=True)
    _labels(keys, "a token of the trigger is removed", "change of m (%)")
    for name, label in (("agreement", "top trigger"), ("permuted", "another memory's")):
        _curve(values, _row(figures["agreement"][name], n), label, percent=True)
    values.axhline(100 * figures["agreement"]["chance"], color="gray", linestyle="dotted", label="chance")
    _labels(values, "the value promotes what follows", "memories (%)")
    for name in ("residual", "agreement", "override", "composition", "alone", "early"):
        label = {"alone": "of no memory", "early": "final token"}.get(name, name)
        _curve(layers, _row(figures["aggregation"]["by_layer"][name], n), label, percent=True)
    _labels(layers, "what layers do to the prediction", "positions (%)")
    for name in ("promotion", "elimination"):
        _curve(updates, figures["sub_updates"]["scores_by_layer"][name], name)
    _labels(updates, "sub-updates: score of the prediction", "static score")
    figure.savefig(path, dpi=150)


def draw_driven(data: Data, path: Path) -> None:
    """Accuracy against layers saved, and the share of texts against perplexity drift, of the first such model."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    exits, steering = figure.subplots(1, 2)
    figures = _first(data, "early_exit", "steering")
    found = figures["early_exit"]
    for place, name in enumerate(found["rules"]):
        accuracy, saved = (found["curves"][of][place] for of in ("accuracy", "saved"))
        exits.plot(saved, [100 * each for each in accuracy], marker=".", label=name.replace("_", " "))
    exits.axhline(100 * found["target"], color="gray", linewidth=0.8)
    exits.set_xlabel("layers saved")
    _labels(exits, "early exit", "accuracy (%)", of_layers=False)
    for name, one in figures["steering"]["sets"].items():
        rows = [row for row in one["rows"] if row["drift"] is not None]
        drifts, shares = [row["drift"][0] for row in rows], [100 * row["share"][0] for row in rows]
        steering.scatter(drifts, shares, label=name)
        for row, drift, share in zip(rows, drifts, shares, strict=True):
            steering.annotate(f"{row['strength']:g}", (drift, share), fontsize="small")
    steering.set_xlabel("perplexity drift (nats)")
    steering.set_xscale("symlog", linthresh=0.1)
    _labels(steering, "ten driven values, by strength", "texts with a word (%)", of_layers=False)
    figure.savefig(path, dpi=150)


def draw_facts(data: Data, path: Path) -> None:
    """For each model knockout, the attributes rate, and who adds the answer, by layer."""
    models = {model: one["by_layer"] for model, one in data["digest"]["models"].items() if "by_layer" in one}
    figure = Figure(figsize=(11, 3.6 * len(models)), layout="constrained")
    rows = figure.subplots(len(models), 3, squeeze=False)
    for (knockout, attributes, answer), (model, found) in zip(rows, models.items(), strict=True):
        for source, means in found["knockout"].items():
            _curve(knockout, means, source, percent=True)
        _labels(knockout, f"{model}: the last position cannot read", "change of P(answer) (%)")
        for of, label in (("own", "the subject's words"), ("other", "another's")):
            _curve(attributes, found["rates"][of], label, percent=True)
        _labels(attributes, "top 50 tokens of the subject", "attributes rate (%)")
        for by, label in (("attention", "attention's"), ("ffn", "the FFN's"), ("state", "the state's")):
            _curve(answer, found["answer"][by], label, percent=True)
        _labels(answer, "the answer is the top token", "facts (%)")
    figure.savefig(path, dpi=150)


PICTURES = {"ffn-lens-text.png": draw_text, "ffn-lens-driven.png": draw_driven, "ffn-lens-facts.png": draw_facts}


def _first(data: Data, *parts: str) -> Data:
    """The figures of the first model that has some parts."""
    found: Data = next(one for one in data["figures"]["models"].values() if set(parts) <= set(one))
    return found


def _row(by_layer: Data, n_layers: int) -> list[Any]:
    return [by_layer.get(str(layer)) for layer in range(n_layers)]


def _curve(axes: Axes, means: Sequence[Data | None], label: str, percent: bool = False) -> None:
    band(axes, range(len(means)), means, label, 100 if percent else 1)


def _labels(axes: Axes, title: str, label: str, of_layers: bool = True) -> None:
    axes.set_title(title, fontsize="medium", loc="left")
    axes.set_ylabel(label)
    if of_layers:
        axes.set_xlabel("layer")
        axes.locator_params(axis="x", integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small")
