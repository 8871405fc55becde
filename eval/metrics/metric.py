"""`Metric`: all that is said of a metric, in one object; tables, curves and the leaderboard read it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from corrigenda import Fact
from eval.measurement import Measurement
from eval.metrics.unit import Unit, unit_of
from eval.records import CHECK_KIND, PAIRED_KINDS, PROBE_KINDS, TEXT_KIND, UNSCORED_KINDS

Measured: TypeAlias = Literal[
    "probabilities", "distributions", "free_answers", "kept_answers", "sampled_text", "held_out_text", "questions"
]

MEASURED: Mapping[Measured, tuple[str, ...]] = {
    "probabilities": (*PAIRED_KINDS, *PROBE_KINDS, CHECK_KIND),
    "distributions": ("neighbourhood", "locality", *UNSCORED_KINDS),
    "free_answers": ("prompt", "paraphrases", "portability"),
    "kept_answers": ("neighbourhood", "locality", *UNSCORED_KINDS),
    "sampled_text": (TEXT_KIND,),
    "held_out_text": (),
    "questions": ("prompt", "paraphrases"),
}
"""What can be measured, and on which kinds of prompts: probabilities of targets under teacher forcing; next-token
distributions, compared with those before; greedy answers; whether the greedy continuation is the one before; text
sampled after a prompt; the log-perplexity of the held-out texts, which belong to no prompt; and answers to questions
as a person asks them."""

FIXED_KINDS = frozenset({"neighbourhood", "locality"})
"""The kinds of prompts of the fixed locality set of sequential runs."""

Compute: TypeAlias = Callable[[Measurement | None, Measurement], float | None]
"""From what the unedited model (None: not measured) and the model did with a fact's prompts to the fact's value; None
where the prompts do not allow it."""


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def mean_over(field: str, *kinds: str) -> Compute:
    """The mean of a field of the records of some kinds of prompts, as the model left them."""
    return lambda _before, after: mean_of(
        getattr(record, field) for kind in kinds for record in after.prompts.get(kind, ())
    )


Judge: TypeAlias = Callable[[Fact, Measurement], None]
"""Notes in the records what follows from them by a rule: P from log-probabilities, whether an answer is right, ..."""

Combine: TypeAlias = Callable[..., NDArray[np.float64]]
"""From the means of several values to one figure, element by element."""

CurveGroup: TypeAlias = Literal["metrics", "right_after", "fixed"]


@dataclass(frozen=True)
class Needs:
    """What a metric is computed from.

    Attributes:
        measured: what is measured.
        kinds: on which kinds of prompts.
    """

    measured: Measured
    kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.measured not in MEASURED:
            raise ValueError(f"nothing measures {self.measured!r}; what is measured: {', '.join(MEASURED)}")
        if unknown := [kind for kind in self.kinds if kind not in MEASURED[self.measured]]:
            allowed = ", ".join(MEASURED[self.measured]) or "none"
            raise ValueError(f"{self.measured} is not measured on prompts of kind {unknown[0]!r}; the kinds: {allowed}")


@dataclass(frozen=True)
class LeaderboardColumn:
    """A column of the leaderboard.

    Attributes:
        place: where it stands; columns are in the order of their places.
        ranks: rows are in the order of the metric with the lowest number here that they have; None: never of this.
        axis: the axis of the page's picture that shows it at first.
        axis_place: of several metrics for an axis the lowest that the rows have is taken.
    """

    place: float = math.inf
    ranks: int | None = None
    axis: Literal["across", "up"] | None = None
    axis_place: int = 0


@dataclass(frozen=True)
class CurveColumn:
    """A metric over the number of edits T.

    Attributes:
        group: of what: "metrics" of all edits so far, "right_after" of each fact right after its own edit, "fixed" of
            the fixed locality set. Points have all metrics in "metrics", and only the declared ones in the others.
        heading: in tables of curves; empty where it is in the points and not in the tables.
        place: where it stands; columns are in the order of their places.
    """

    group: CurveGroup = "metrics"
    heading: str = ""
    place: float = math.inf


@dataclass(frozen=True)
class Groups:
    """A metric for each group of probes that a benchmark tells apart, such as RippleEdits' six criteria.

    Its value is what the metric gives where a fact has only that group's probes.

    Attributes:
        kind: the probes, one of `PROBE_KINDS`.
        before: the part of the group metric's key before the group's name.
        after: the part after it.
        name: the metric's name after the group's in tables.
    """

    kind: Literal["locality", "portability"]
    before: str
    after: str
    name: str

    def key(self, group: str) -> str:
        """The key of a group's metric."""
        return f"{self.before}{group}{self.after}"

    def group(self, key: str) -> str | None:
        """The group whose metric has this key; None where it is no such key."""
        if not (key.startswith(self.before) and key.endswith(self.after)):
            return None
        return key[len(self.before) : len(key) - len(self.after)] or None


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        key: its name in every file, table and API.
        title: its name in full.
        unit: a symbol of `eval.metrics.unit.UNITS`, or another.
        better: whether high or low values are better; None where neither is.
        needs: what it is computed from.
        compute: from what was measured before and after to a fact's value.
        short: a heading; by default the title.
        line: its name in the table of an evaluation, where it may stand under another; by default the title.
        edit_should: what an edit should do with it. "change": this is what the edit is for, and an edit that failed has
            0. "keep": the edit should leave it as it was. None: neither.
        one_value: whether one edited model has one value for all facts, and so no interval over facts.
        by_window: what its value is the mean of, by window of the held-out texts; of one edited model there is an
            interval over these. None where they are not known.
        signed: whether its values are differences, and so may lie below 0, also where the unit is "%".
        judge: what it notes in the records before anything is computed; run while measuring and when values are worked
            out again from the records.
        parts: the metrics it is combined from; such a metric has a figure for several facts, and none for one.
        combine: from the means of the parts to the figure.
        shown_with: tables do not show it where one of these metrics is missing.
        column: its column of the leaderboard, if it has one.
        curve: where it stands in curves over the number of edits.
        groups: the metrics for each group of probes, if there are any.
    """

    key: str
    title: str
    unit: str
    better: Literal["high", "low"] | None
    needs: tuple[Needs, ...]
    compute: Compute
    short: str = ""
    line: str = ""
    edit_should: Literal["change", "keep"] | None = None
    one_value: bool = False
    by_window: Callable[[Measurement | None, Measurement], Mapping[int, float] | None] | None = None
    signed: bool = False
    judge: Judge | None = None
    parts: tuple[str, ...] = ()
    combine: Combine | None = None
    shown_with: tuple[str, ...] = ()
    column: LeaderboardColumn | None = None
    curve: tuple[CurveColumn, ...] = ()
    groups: Groups | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", self.short or self.title)
        object.__setattr__(self, "line", self.line or self.title)
        if not self.key.isidentifier():
            raise ValueError(f"the metric's key {self.key!r} must be letters, digits and underscores")
        if self.column is not None and self.better is None:
            raise ValueError(f"metric {self.key!r}: a column of the leaderboard needs better='high' or 'low'")
        fixed = any(one.group == "fixed" for one in self.curve)
        if fixed and not {kind for need in self.needs for kind in need.kinds or ("",)} <= FIXED_KINDS:
            raise ValueError(
                f"metric {self.key!r}: the fixed locality set has prompts of kind {' and '.join(sorted(FIXED_KINDS))} "
                f"alone, and it needs {', '.join(f'{need.measured} {list(need.kinds)}' for need in self.needs)}"
            )
        if bool(self.parts) != (self.combine is not None):
            raise ValueError(f"metric {self.key!r}: give both parts and combine, or neither")

    @property
    def written(self) -> Unit:
        """How its figures are written."""
        return unit_of(self.unit)

    @property
    def is_share(self) -> bool:
        """Whether a fact's value, or each of its parts, is a share from 0 to 1."""
        return self.written.is_share and not self.signed

    def figures(self, values: Mapping[str, float]) -> tuple[float, ...] | None:
        """What of a fact's values is averaged: its own value, or those of its parts; None where one is not a number."""
        found = [values.get(key, math.nan) for key in self.parts or (self.key,)]
        return tuple(found) if all(map(math.isfinite, found)) else None

    def aggregate(self, columns: Sequence[Sequence[float]]) -> float:
        """The figure for several facts: the mean, or what combines the parts' means.

        Args:
            columns: by part the facts' values, as `figures` gives them.
        """
        means = [fmean(column) for column in columns]
        return means[0] if self.combine is None else float(self.combine(*map(np.array, means)))

    def of_group(self, group: str) -> Metric:
        """The metric of one group of probes.

        Raises:
            ValueError: it has no groups.
        """
        groups = self.groups
        if groups is None:
            raise ValueError(f"metric {self.key!r} has no groups of probes")

        def alone(whole: Measurement) -> Measurement:
            return Measurement({groups.kind: [one for one in whole.probes(groups.kind) if one.group == group]})

        def compute(before: Measurement | None, after: Measurement) -> float | None:
            return self.compute(None if before is None else alone(before), alone(after))

        name = f"{group.replace('_', ' ')}: {groups.name}"
        needs = tuple(replace(one, kinds=(groups.kind,)) for one in self.needs)
        plain: dict[str, Any] = {"column": None, "curve": (), "groups": None}
        return replace(
            self, key=groups.key(group), title=name, short=name, line=f"  {name}", needs=needs, compute=compute, **plain
        )
