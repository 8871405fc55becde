"""`AverageTrace`: what tracing many facts gave, by the part tokens play in their prompts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from corrigenda.intervals import interval
from corrigenda.system.progress import counted
from locate.saving import SavedResult
from locate.tracing.trace import ROLES, CausalTraceResult

LAST_SUBJECT_TOKEN = ROLES.index("last subject token")


@dataclass(frozen=True, eq=False)
class AverageTrace(SavedResult, file="average"):
    """Average indirect effects (AIE) over facts, with 95 % bootstrap intervals over subjects.

    Attributes:
        site: what was restored: "block", "ffn" or "attention".
        window: in how many layers at once.
        method: "exact" or "attribution".
        severed: what was frozen above the restored states, or None.
        n_facts: the number of facts.
        p_clean: the mean of P(answer) in the clean runs.
        p_corrupted: the mean in the corrupted runs.
        total_effect: the average total effect, and its interval's bounds (None with fewer than two subjects).
        counts: for each of `ROLES` the number of facts that have such tokens.
        effects: the AIE, (role, layer); NaN for a role that no fact has.
        low: the intervals' lower bounds, (role, layer); NaN where there is none.
        high: the upper bounds, (role, layer).
        hidden: what the noise hid, "subject" or "relation".
    """

    site: str
    window: int
    method: str
    severed: str | None
    n_facts: int
    p_clean: float
    p_corrupted: float
    total_effect: tuple[float, float | None, float | None]
    counts: tuple[int, ...]
    effects: Tensor
    low: Tensor
    high: Tensor
    hidden: str = "subject"

    def layer_scores(self) -> Tensor:
        """The AIE at the last subject token, (layer,): where, by tracing, a fact is read out of the subject."""
        return self.effects[LAST_SUBJECT_TOKEN]

    def summary(self) -> dict[str, Any]:
        """The figures in plain values: for each role the layer with the largest AIE, and its interval."""
        peaks = {}
        for number, role in enumerate(ROLES):
            if self.counts[number]:
                layer = int(self.effects[number].argmax())
                figures = (float(part[number, layer]) for part in (self.effects, self.low, self.high))
                effect, low, high = (value if math.isfinite(value) else None for value in figures)
                peaks[role] = {"layer": layer, "effect": effect, "low": low, "high": high, "n": self.counts[number]}
        effect, low, high = self.total_effect
        return {
            "n": self.n_facts,
            "p_clean": self.p_clean,
            "p_corrupted": self.p_corrupted,
            "total_effect": {"mean": effect, "low": low, "high": high},
            "peaks": peaks,
        }

    def table(self) -> Table:
        """A table for a terminal: for each role where the effect is largest."""
        effect, low, high = self.total_effect
        bounds = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
        title = (
            f"{self.hidden} hidden, restored {self.site}, {counted(self.n_facts, 'fact')}: "
            f"total effect {100 * effect:.1f} %{bounds}"
        )
        table = Table("tokens", "facts", "peak layer", "AIE there (%)", "95 % interval", title=title)
        for role, peak in self.summary()["peaks"].items():
            inside = "" if peak["low"] is None else f"{100 * peak['low']:.1f} to {100 * peak['high']:.1f}"
            table.add_row(role, str(peak["n"]), str(peak["layer"]), f"{100 * peak['effect']:.1f}", inside)
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the AIE of each role by layer, with its interval, as PNG, PDF or SVG, by the path's suffix."""
        from locate.tracing.pictures import NAMES, curves

        effect, low, high = self.total_effect
        bounds = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
        curves(
            path,
            {
                role: (self.effects[number], self.low[number], self.high[number])
                for number, role in enumerate(ROLES)
                if self.counts[number]
            },
            emphasised=("last subject token", "last token"),
            window=self.window,
            title=f"{self.hidden} hidden, {NAMES[self.site]}, {counted(self.n_facts, 'fact')}; "
            f"total effect {100 * effect:.1f} %{bounds}",
        )


def average_traces(traces: Sequence[CausalTraceResult]) -> AverageTrace:
    """Averages traces over facts, by role; tokens of one role within a fact first, so that every fact counts the same.

    Raises:
        ValueError: there is no trace, or they differ in what was restored, in the noise, in the method or in the
            model's depth.
    """
    kinds = {(t.site, t.window, t.method, t.severed, t.hidden, t.samples, t.scores.shape[0]) for t in traces}
    if len(kinds) != 1:
        raise ValueError(
            f"an average needs traces of one kind, got {len(kinds)} kinds (site, window, method, severed, hidden, "
            f"samples, layers): {sorted(map(str, kinds))}"
        )
    sigmas = [trace.sigma for trace in traces]
    if not math.isclose(min(sigmas), max(sigmas), rel_tol=1e-4):  # measured anew in each process: not to the last bit
        raise ValueError(f"an average needs traces of one noise, got sigma={min(sigmas):g} to {max(sigmas):g}")
    subjects = [trace.fact.subject for trace in traces]
    by_role = torch.stack([trace.by_role() for trace in traces])  # (fact, role, layer)
    effects, low, high = (torch.full(by_role.shape[1:], math.nan) for _ in range(3))
    counts = []
    for role in range(len(ROLES)):
        has = [number for number in range(len(traces)) if not bool(by_role[number, role].isnan().any())]
        counts.append(len(has))
        for layer in range(by_role.shape[2] if has else 0):
            values = by_role[has, role, layer].tolist()
            effects[role, layer] = fmean(values)
            bounds = interval([values], [subjects[number] for number in has])
            low[role, layer], high[role, layer] = bounds or (math.nan, math.nan)
    totals = [trace.total_effect for trace in traces]
    bounds = interval([totals], subjects)
    site, window, method, severed, hidden, *_ = kinds.pop()
    return AverageTrace(
        site=site,
        window=window,
        method=method,
        severed=severed,
        n_facts=len(traces),
        p_clean=fmean(trace.p_clean for trace in traces),
        p_corrupted=fmean(trace.p_corrupted for trace in traces),
        total_effect=(fmean(totals), None, None) if bounds is None else (fmean(totals), *bounds),
        counts=tuple(counts),
        effects=effects,
        low=low,
        high=high,
        hidden=hidden,
    )
