"""The pictures of docs/ffn-lens.md, from its data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drawn import band
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def draw_text(data: Mapping[str, Any], path: Path) -> None:
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


def draw_driven(data: Mapping[str, Any], path: Path) -> None:
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


def draw_facts(data: Mapping[str, Any], path: Path) -> None:
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


def _first(data: Mapping[str, Any], *parts: str) -> Mapping[str, Any]:
    """The figures of the first model that has some parts."""
    found: Mapping[str, Any] = next(one for one in data["figures"]["models"].values() if set(parts) <= set(one))
    return found


def _row(by_layer: Mapping[str, Any], n_layers: int) -> list[Any]:
    return [by_layer.get(str(layer)) for layer in range(n_layers)]


def _curve(axes: Axes, means: Sequence[Mapping[str, Any] | None], label: str, percent: bool = False) -> None:
    band(axes, range(len(means)), means, label, 100 if percent else 1)


def _labels(axes: Axes, title: str, label: str, of_layers: bool = True) -> None:
    axes.set_title(title, fontsize="medium", loc="left")
    axes.set_ylabel(label)
    if of_layers:
        axes.set_xlabel("layer")
        axes.locator_params(axis="x", integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small")
