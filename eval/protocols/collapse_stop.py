"""The collapse stop, which ends a sequence of edits: which figure of a checkpoint is beyond its limit."""

from collections.abc import Mapping
from typing import Any

from corrigenda import LanguageModel
from corrigenda.errors import SettingsError
from eval.protocols.settings import CollapseStopSettings, SequentialSettings
from eval.settings import EvalSettings

ACCURACIES = ("acc", "exact_match", "acc_norm")
"""What a task's accuracy may be called, with a filter after a comma or without; the first that it has is watched."""


def find_collapse(point: Mapping[str, Any], limits: CollapseStopSettings) -> dict[str, Any] | None:
    """Why a sequence stops at a point of its curve; None where it goes on.

    ``{"t", "figure", "value", "limit", "why"}``; "value" is None where the figure could not be computed.
    """
    t, metrics = int(point["t"]), point["metrics"]
    if limits.perplexity_drift is not None:
        drift = _after(metrics, "perplexity_drift")
        if drift is None or drift > limits.perplexity_drift:
            return _stop(t, "perplexity_drift", drift, limits.perplexity_drift, "perplexity drift (nats)", "above")
    share = _after(metrics, "token_accuracy")  # None where there are erasures alone, which say no new object
    if limits.reliability is not None and share is not None and share < limits.reliability:
        return _stop(t, "reliability", share, limits.reliability, "reliability (token accuracy)", "below")
    if limits.harness_drop is not None:
        for task, figures in point.get("harness", {}).items():
            accuracy = figures[_accuracy_of(task, figures)]
            before, after = accuracy["before"], accuracy["after"]
            drop = None if before is None or after is None else 100 * (before - after)
            if drop is None or drop > limits.harness_drop:
                what = f"fall of {task} (points)"
                return _stop(t, "harness_drop", drop, limits.harness_drop, what, "above") | {"task": task}
    return None


def check_collapse_stop(lm: LanguageModel, settings: SequentialSettings, measured: EvalSettings) -> None:
    """Checks that what the collapse stop watches is measured, or raises SettingsError."""
    limits = settings.collapse_stop
    if limits.perplexity_drift is not None and lm.architecture.has_encoder:
        raise SettingsError(
            f"collapse_stop.perplexity_drift={limits.perplexity_drift}: {lm.name} is an encoder-decoder, which has no "
            "perplexity of running text; set the limit to null"
        )
    if limits.perplexity_drift is not None and not measured.perplexity_windows:
        raise SettingsError(
            f"collapse_stop.perplexity_drift={limits.perplexity_drift}: no perplexity is measured "
            "(eval.perplexity_windows=0); measure it, or set the limit to null"
        )
    if limits.reliability is not None and "prompt" in measured.without:
        raise SettingsError(
            f"collapse_stop.reliability={limits.reliability}: the edited prompts are not measured (eval.only="
            f"{list(measured.only)}); name prompt there, too, or set the limit to null"
        )
    if limits.harness_drop is not None and not measured.harness_tasks:
        raise SettingsError(
            f"collapse_stop.harness_drop={limits.harness_drop}: there is no task to watch; name some "
            "(eval.harness_tasks=[...]), or set the limit to null"
        )


def _stop(t: int, figure: str, value: float | None, limit: float, what: str, beyond: str) -> dict[str, Any]:
    if value is None:
        why = f"after {t} edits there is no {what}: it cannot be computed"
    else:
        why = f"after {t} edits the {what} is {value:.4g}, {beyond} the limit of {limit:g}"
    return {"t": t, "figure": figure, "value": value, "limit": limit, "why": why}


def _after(metrics: Mapping[str, Any], key: str) -> float | None:
    found = metrics.get(key)
    return None if found is None else found["after"]


def check_watched(scores: Mapping[str, Mapping[str, float]]) -> None:
    """Checks that each of the harness's tasks has an accuracy to watch, or raises SettingsError; `scores` are by task.

    Only the harness says what a task's figures are called, so they are of the unedited model, before the first edit.
    """
    for task, figures in scores.items():
        _accuracy_of(task, figures)


def _accuracy_of(task: str, figures: Mapping[str, Any]) -> str:
    """What a task's accuracy is called; with several filters the first."""
    for name in ACCURACIES:
        for figure in figures:
            if figure.partition(",")[0] == name:
                return figure
    raise SettingsError(
        f"collapse_stop.harness_drop: the task {task} has no accuracy ({', '.join(ACCURACIES)}; it has "
        f"{', '.join(figures) or 'nothing'}); take the task out, or set the limit to null"
    )
