"""Perplexity of held-out texts, and its drift: what an edit did to the model as a whole.

Where several facts share one edited model, intervals are over the windows of the texts (`eval.scoring.held_out`); where
each fact has its own, they are over subjects as ever, each of which has windows of its own.
"""

from statistics import fmean

from eval.measurement import Measurement
from eval.metrics.metric import CurveColumn, LeaderboardColumn, Metric, Needs


def _level(_before: Measurement | None, after: Measurement) -> float | None:
    if after.held_out is None:
        return after.log_perplexity
    return after.held_out.log_perplexity


def _drift(before: Measurement | None, after: Measurement) -> float | None:
    """The difference of the logarithms, ln ppl(after) - ln ppl(before), on the windows that were read after."""
    if before is None:
        return None
    if after.held_out is None and before.held_out is None:
        levels = before.log_perplexity, after.log_perplexity
        return None if levels[0] is None or levels[1] is None else levels[1] - levels[0]
    drifts = _drifts(before, after)
    return fmean(drifts.values()) if drifts else None


def _drifts(before: Measurement | None, after: Measurement) -> dict[int, float] | None:
    """By window the rise of its tokens' mean negative log-probability; all windows have the same number of tokens."""
    if before is None or before.held_out is None or after.held_out is None:
        return None
    old, new = before.held_out.by_window(), after.held_out.by_window()
    return {window: level - old[window] for window, level in new.items()} if new.keys() <= old.keys() else None


def _activated(_before: Measurement | None, after: Measurement) -> float | None:
    answers = _activations(None, after)
    return None if answers is None else fmean(answers.values())


def _activations(_before: Measurement | None, after: Measurement) -> dict[int, float] | None:
    held_out = after.held_out
    if held_out is None or held_out.activated is None:
        return None
    return {window: float(answer) for window, answer in zip(held_out.windows, held_out.activated, strict=True)}


METRICS = (
    Metric(
        "perplexity_drift",
        "perplexity drift",
        "nats",
        "low",
        (Needs("held_out_text"),),
        _drift,
        short="ppl drift",
        edit_should="keep",
        one_value=True,
        by_window=_drifts,
        column=LeaderboardColumn(30),
        curve=(CurveColumn(heading="drift", place=120),),
    ),
    Metric(
        "log_perplexity",
        "log perplexity of the held-out texts",
        "nats",
        "low",
        (Needs("held_out_text"),),
        _level,
        short="log ppl",
        line="  log perplexity of the held-out texts",
        edit_should="keep",
        one_value=True,
        by_window=lambda _before, after: None if after.held_out is None else after.held_out.by_window(),
    ),
    Metric(
        "windows_activated",
        "windows of the held-out texts in which the edit answered",
        "%",
        "low",
        (Needs("held_out_text"),),
        _activated,
        short="windows",
        line="  windows in which the edit answered",
        one_value=True,
        by_window=_activations,
        column=LeaderboardColumn(31),
        curve=(CurveColumn(heading="windows", place=125),),
    ),
)
"""`windows_activated` is of edits that route (side memories, codebooks), and absent for others: on such texts none of
them should answer."""
