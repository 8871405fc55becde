"""The page of a tuning: what was tried, in a table and a picture, with its data beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corrigenda.system.files import write_json, write_text
from corrigenda.text.names import model_title
from eval.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "tuning"
SHOWN = (
    *("efficacy_success", "paraphrase_success", "neighbourhood_success"),
    *("preservation", "first_token_kept", "answer_kept", "bleed", "perplexity_drift"),
)
"""Figures of each trial, besides those that are tuned for."""


def write_page(folder: Path, found: Mapping[str, Any]) -> None:
    """Writes ``tuning.md``, ``tuning.png`` and ``tuning.json`` of a run's summary."""
    write_json(folder / f"{NAME}.json", found)
    draw(folder / f"{NAME}.png", found)
    write_text(folder / f"{NAME}.md", "\n".join(lines_of(found)) + "\n")


def lines_of(found: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the page."""
    trials: Sequence[Mapping[str, Any]] = found["trials"]
    best, first = trials[found["best"]], trials[0]
    yield f"# {found['editor']} tuned for {model_title(found['model'])}"
    yield ""
    yield (
        f"{len(trials)} trials on {len(found['facts'])} facts of {model_title(found['data'])} (mode={found['mode']}), "
        f"in {found['seconds'] / 60:.1f} minutes. Tuned for: {found['objective']}."
    )
    yield ""
    yield f"Where to look for layers: {_traced(found['traced'])}"
    yield ""
    if best["number"] == 0:
        yield "**No settings were better than those that the editor has already** (trial 0)."
    else:
        was = "no figures" if first["value"] is None else f"{first['value']:.3f}"
        yield (
            f"**The best is trial {best['number']}: {in_words(best['settings'])}** ({best['value']:.3f}; the settings "
            f"that the editor had: {was})."
        )
    yield (
        "It was chosen on these facts, so that its figures on them are too good: compare on others. With few facts a "
        "small difference may be chance."
    )
    yield ""
    yield f"![the trials]({NAME}.png)"
    yield ""
    tuned_for = next((trial["tuned_for"] for trial in trials if trial.get("tuned_for")), ())
    keys = [key for key in dict.fromkeys((*tuned_for, *SHOWN)) if any(key in trial["metrics"] for trial in trials)]
    headings = [f"{_metric(key).short} ({_metric(key).unit})" for key in keys]
    yield " | ".join(["| trial", "settings", "from", "value", *headings, "s |"])
    yield "|" + "---|" * (len(keys) + 5)
    for trial in trials:
        cells = [_figure(trial, key) for key in keys]
        value = trial["error"] or "no figures" if trial["value"] is None else f"{trial['value']:.3f}"
        value = f"**{value}**" if trial is best else value
        row = [
            str(trial["number"]),
            in_words(trial["settings"]),
            trial["why"],
            value,
            *cells,
            f"{trial['seconds']:.0f}",
        ]
        # An error may have several lines, and a row is one.
        yield f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in row)} |"
    yield ""
    yield "A value below 0 is by how much bounds are missed, in all: nats of perplexity drift, and shares below floors."
    yield ""
    yield "Later runs take the settings by"
    yield ""
    yield f"    {found['later']}"
    yield ""
    yield f"The facts, which no figure should be taken on: {', '.join(found['facts'])}."


def draw(path: Path, found: Mapping[str, Any]) -> None:
    """A picture: the trials' values one after another, and against each setting."""
    from matplotlib.figure import Figure  # see `locate.pictures`
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    trials = [trial for trial in found["trials"] if trial["value"] is not None]
    axes = [axis for axis in found["axes"] if axis["low"] < axis["high"]]
    figure = Figure(figsize=(3.2 * (len(axes) + 1), 3.2), layout="constrained")
    panels = figure.subplots(1, len(axes) + 1, squeeze=False, sharey=True)[0]
    _points(panels[0], [trial["number"] for trial in trials], trials, found["best"])
    panels[0].set_xlabel("trial")
    panels[0].set_ylabel("value")
    panels[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis, panel in zip(axes, panels[1:], strict=True):
        _points(panel, [trial["params"][axis["name"]] for trial in trials], trials, found["best"])
        panel.set_xlabel(_axis_title(axis["name"], found["axes"]))
        if axis["log"]:
            panel.set_xscale("log")
            panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        elif axis["whole"]:
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=120)


def _points(panel: Axes, places: Sequence[float], trials: Sequence[Mapping[str, Any]], best: int) -> None:
    for mark, size, label, kept in (
        ("o", 28, "tried", [trial["number"] not in (0, best) for trial in trials]),
        ("s", 40, "as the editor was", [trial["number"] == 0 for trial in trials]),
        ("*", 110, "the best", [trial["number"] == best for trial in trials]),
    ):
        shown = [(place, trial["value"]) for place, trial, one in zip(places, trials, kept, strict=True) if one]
        if shown:
            across, up = zip(*shown, strict=True)
            panel.scatter(across, up, marker=mark, s=size, label=label, zorder=2)
    panel.grid(alpha=0.3)
    if panel.get_subplotspec() is not None and panel.get_subplotspec().is_first_col():  # type: ignore[union-attr]
        panel.legend(fontsize=8)


def _axis_title(name: str, axes: Sequence[Mapping[str, Any]]) -> str:
    several = any(axis["name"] == "number" for axis in axes)
    return {"layer": "last layer" if several else "layer", "number": "layers"}.get(name, name)


def _traced(traced: Mapping[str, Any]) -> str:
    if not traced["layers"]:
        return f"around the editor's default, since {traced['why']}."
    layers, facts = ", ".join(map(str, traced["layers"])), ", ".join(traced["facts"])
    return f"causal tracing finds the facts {facts} at the layers {layers} (the best one first)."


def _metric(key: str) -> Any:
    return METRICS.named(key)


def _figure(trial: Mapping[str, Any], key: str) -> str:
    figures = trial["metrics"].get(key)
    return "" if figures is None else str(_metric(key).written.text(figures["after"]))


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings in one line."""
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "as the editor has them"
