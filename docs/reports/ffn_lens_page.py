"""The page of docs/reports/ffn_lens.py: from its data alone, in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ffn_lens_findings import changes, claims, rates, read, shown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from words import written

from eval.statistics.paired import holm, paired_test
from locate.lens.by_layer import Mean, mean_of

NAME = "ffn-lens"
SCRIPT = "ffn_lens.py"


def page(data: Mapping[str, Any], docs: Path) -> list[Path]:
    """The page and its pictures."""
    figures = data["figures"]
    folder = docs / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {folder / f"{NAME}-{name}.png": draw for name, draw in DRAWN.items()}
    for path, draw in pictures.items():
        draw(figures, path)
    return [*written(NAME, SCRIPT, view)(data, docs), *pictures]


def view(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows."""
    figures = data["figures"]
    found, exits, steering = claims(figures), figures["early_exit"], figures["steering"]
    upper, lower = (read(figures["agreement"]["by_depth"][depth]["agreement"]) for depth in ("upper", "lower"))
    undriven = round(sum(steering["sets"]["insults"]["with"][0]))
    return {
        **figures,
        "claims": found,
        "number": {verdict: sum(one.verdict == verdict for one in found) for verdict in ("replicates", "open")},
        "upper": shown(upper, 2),
        "lower": shown(lower, 2),
        "asked": ", ".join(f"{n} {name}" for name, n in figures["facts"]["asked"].items() if n),
        "rules": {
            name: [Mean(*one[of], exits["n"]) for of in ("saved", "accuracy")] for name, one in exits["rules"].items()
        },
        "undriven": undriven,
        "p_of_none": min(1, 2 * 0.5**undriven),
        "driven": driven(steering),
    }


def driven(steering: Mapping[str, Any]) -> list[tuple[str, float, float, float, str]]:
    """By what is driven how far: texts with a word of the list, p against no driving, perplexity drift."""
    places = [(name, one, place) for name, one in steering["sets"].items() for place in range(1, len(one["rows"]))]
    chances = holm([paired_test(one["with"][place], one["with"][0]) for _, one, place in places])
    rows = []
    for (name, one, place), p in zip(places, chances, strict=True):
        row = one["rows"][place]
        drift = "" if row["drift"] is None else Mean(*row["drift"], steering["prompts"]).text(digits=3)
        rows.append((name, row["strength"], sum(one["with"][place]), p, drift))
    return rows


# -- pictures


def draw_text(figures: Mapping[str, Any], path: Path) -> None:
    """Sensitivity, agreement, what layers do, and promotion, by layer."""
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
        _curve(updates, [read(one) for one in figures["sub_updates"]["scores_by_layer"][name]], name)
    _labels(updates, "sub-updates: score of the prediction", "static score")
    figure.savefig(path, dpi=150)


def draw_driven(figures: Mapping[str, Any], path: Path) -> None:
    """Accuracy against layers saved, and the share of texts against perplexity drift."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    exits, steering = figure.subplots(1, 2)
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


def draw_facts(figures: Mapping[str, Any], path: Path) -> None:
    """Knockout, the attributes rate, and who adds the answer, by layer."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    knockout, attributes, answer = figure.subplots(1, 3)
    known = figures["facts"]["known"]
    for source in ("subject", "relation", "last"):
        _curve(knockout, changes(known, source), source, percent=True)
    _labels(knockout, "the last position cannot read", "change of P(answer) (%)")
    for of, label in (("own", "the subject's words"), ("other", "another's")):
        _curve(attributes, rates(known, of), label, percent=True)
    _labels(attributes, "top 50 tokens of the subject", "attributes rate (%)")
    for by, label in (("attention", "attention's"), ("ffn", "the FFN's"), ("state", "the state's")):
        rows = [[float(rank == 0) for rank in one["ranks"][by]] for one in known]
        _curve(answer, [mean_of(column, shares=True) for column in zip(*rows, strict=True)], label, percent=True)
    _labels(answer, "the answer is the top token", "facts (%)")
    figure.savefig(path, dpi=150)


DRAWN = {"text": draw_text, "driven": draw_driven, "facts": draw_facts}


def _row(by_layer: Mapping[str, Any], n_layers: int) -> list[Mean | None]:
    return [read(by_layer[str(layer)]) if str(layer) in by_layer else None for layer in range(n_layers)]


def _curve(axes: Axes, means: Sequence[Mean | None], label: str, percent: bool = False) -> None:
    by = 100 if percent else 1

    def part(name: str) -> list[float]:
        found = [None if mean is None else getattr(mean, name) for mean in means]
        return [math.nan if each is None else by * each for each in found]

    [line] = axes.plot(range(len(means)), part("mean"), label=label)
    axes.fill_between(range(len(means)), part("low"), part("high"), color=line.get_color(), alpha=0.15, linewidth=0)


def _labels(axes: Axes, title: str, label: str, of_layers: bool = True) -> None:
    axes.set_title(title, fontsize="medium", loc="left")
    axes.set_ylabel(label)
    if of_layers:
        axes.set_xlabel("layer")
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small")
