"""Sequences of the same facts in several orders: which runs these are, and one curve with intervals over orders.

An interval over facts says how much a figure depends on which facts were drawn, one over orders how much it depends on
the order in which they came. Orders are few (three or so), so the latter is Student's t interval of the mean.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from scipy import stats

from corrigenda.runs.ids import run_id
from corrigenda.runs.store import StoredRun
from eval.metrics import METRICS, RUN_FIGURES
from eval.protocols.curves import Point

GROUPS = ("metrics", "right_after", "first", "latest", "fixed")
"""The parts of a point that hold metrics."""


def by_order(runs: Iterable[StoredRun]) -> list[dict[int | None, StoredRun]]:
    """Finished sequences that differ in ``data.order`` alone, together: by order the run.

    The same facts, model, code and settings; of two runs of one order the later one counts. What is no finished
    sequence, or was ended by its collapse stop, is passed over.
    """
    found: dict[str, dict[int | None, StoredRun]] = {}
    for run in runs:
        said = run.summary
        known = run.state == "finished" and said.get("mode") == "sequential" and "data_unordered_fingerprint" in said
        if not known or "stopped" in said:
            continue
        facts, model = said["data_unordered_fingerprint"], str(run.identity.get("model_fingerprint", ""))
        key = run_id(run.config, facts, model, str(run.identity.get("code", "")))
        found.setdefault(key, {})[said.get("order")] = run
    return list(found.values())


def over_orders(curves: Sequence[Sequence[Point]]) -> list[dict[str, Any]]:
    """One curve of several, each of the same facts in another order.

    Its points are at the T that all curves have: of each metric that all have there ``{"before", "after", "low",
    "high", "n"}``, the means over orders with a 95 % t interval of "after" (None where there is one order, or where all
    agree, which says nothing of how far others may lie), and how many orders there are, as in ``n_orders``; other
    figures are means, the memory the largest. Raises ValueError: there is no curve, or they have no T in common.
    """
    by_t = [{int(point["t"]): point for point in curve} for curve in curves]
    common = sorted(set.intersection(*map(set, by_t))) if by_t else []
    if not common:
        raise ValueError(f"{len(curves)} curves over orders have no T in common: score them at the same checkpoints")
    return [_point([points[t] for points in by_t]) for t in common]


def order_interval(values: Sequence[float], share: bool = False) -> tuple[float, float] | None:
    """The 95 % t interval of the mean over orders; None where it is not defined (one order, or all the same).

    With `share` the figure lies between 0 and 1, and its interval is cut there.
    """
    if len(values) < 2 or stdev(values) == 0:
        return None
    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    low, high = fmean(values) - half, fmean(values) + half
    return (max(0.0, low), min(1.0, high)) if share else (low, high)


def _point(points: Sequence[Point]) -> dict[str, Any]:
    merged: dict[str, Any] = {"t": points[0]["t"], "n_orders": len(points)}
    for group in GROUPS:
        if any(group in point for point in points):
            merged[group] = _metrics([point.get(group, {}) for point in points])
    for key in (*RUN_FIGURES, "relative_norm", "n_scored", "n_overwritten", "n_repeated", "n_failed"):
        values = [point.get(key) for point in points]
        known = [float(value) for value in values if value is not None]
        if len(known) == len(points):
            merged[key] = max(known) if key == "peak_memory_mb" else fmean(known)
    sizes = {point["n_fixed_prompts"] for point in points if "n_fixed_prompts" in point}
    return merged | ({"n_fixed_prompts": max(sizes)} if sizes else {})


def _metrics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the metrics that all orders have, the figures over orders."""
    merged = {}
    for key in parts[0]:
        figures = [part[key] for part in parts if key in part]
        if len(figures) < len(parts):
            continue
        after = [float(one["after"]) for one in figures]
        before = [one["before"] for one in figures]
        bounds = order_interval(after, METRICS.named(key).is_share)
        merged[key] = {
            "before": None if None in before else fmean(map(float, before)),
            "after": fmean(after),
            "low": None if bounds is None else bounds[0],
            "high": None if bounds is None else bounds[1],
            "n": len(after),
        }
    return merged
