"""Before and after: cases, their summary with intervals, and the table that shows it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from corrigenda import Fact, LanguageModel
from corrigenda.data.requests import select_active
from corrigenda.facts import as_facts
from corrigenda.intervals import interval
from corrigenda.models.alone import one_thread
from corrigenda.runs.records import CRASHED
from corrigenda.settings.checked import check_class
from eval.measure import measure
from eval.measurement import Measurement, finite
from eval.metrics import METRICS, Metric
from eval.metrics.unit import Unit
from eval.records import LOG_PROBS
from eval.settings import EvalSettings

logger = logging.getLogger(__name__)

NOT_FINITE = "not finite"
"""How the error of an edit begins that left the model without numbers. Of such an edit some figures are in no mean."""


@dataclass(frozen=True)
class Case:
    """One fact: what the unedited and the edited model did with its prompts.

    Attributes:
        fact: the request.
        before: the unedited model's measurement; None where only the edited one was measured.
        after: the edited model's; for an edit that failed see `failed`.
        edit: what the editor reported of this fact.
        seconds: that the edit took.
        error: why there is no edit (refused, crashed, not finite); empty otherwise. Such an edit counts as failed.
    """

    fact: Fact
    before: Measurement | None
    after: Measurement
    edit: Mapping[str, Any] | None = None
    seconds: float | None = None
    error: str = ""

    @property
    def crashed(self) -> bool:
        """Whether the program failed at this case: it counts as failed, and is tried again when the run goes on."""
        return self.error.startswith(CRASHED)

    def to_dict(self) -> dict[str, Any]:
        """The case as JSON values: a line of ``cases.jsonl``."""
        return {
            "id": self.fact.id,
            "fact": self.fact.to_dict(),
            "verb": self.fact.verb,
            "edit": None if self.edit is None else finite(self.edit),
            "seconds": self.seconds,
            "error": self.error,
            "before": None if self.before is None else self.before.to_dict(),
            "after": self.after.to_dict(),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Case:
        """The case of a line that `to_dict` gave; what only a running comparison needs is not in it."""
        before, after = record["before"], record["after"]
        return cls(
            Fact.from_dict(record["fact"]),
            None if before is None else Measurement.from_dict(before),
            Measurement.from_dict(after),
            record["edit"],
            record["seconds"],
            record["error"],
        )


def judged(
    fact: Fact,
    before: Measurement,
    after: Measurement,
    edit: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    error: str = "",
) -> Case:
    """The case of one fact; a failed one where there is an error, or where the edited model gave no numbers."""
    error = error or after.error
    if not error and not all(map(math.isfinite, _numbers(after))):
        error = f"{NOT_FINITE}: the edited model gives no numbers"
    return Case(fact, before, failed(after) if error else after, edit, seconds, error)


def _numbers(measurement: Measurement) -> Iterator[float]:
    """What has to be a number: the values, and the log-probabilities that success rates do not show."""
    yield from measurement.values.values()
    for records in measurement.prompts.values():
        for record in records:
            for name in LOG_PROBS:
                yield from record.get(name, ())


def failed(state: Measurement) -> Measurement:
    """The measurement of an edit that failed, given that of the model as it is (unedited, or with other edits).

    What the edit should have brought about counts as not brought about, even where the model happens to give it; what
    it should have left alone is as measured. Figures that are no numbers are left out.
    """
    values = {key: value for key, value in state.values.items() if math.isfinite(value)}
    values |= METRICS.missed(state.values)
    return Measurement(
        prompts=state.prompts, values=values, log_perplexity=state.log_perplexity, held_out=state.held_out
    )


@dataclass(frozen=True)
class Evaluation:
    """Cases and what they come to.

    Attributes:
        cases: one for each fact.
    """

    cases: tuple[Case, ...]

    @property
    def metrics(self) -> dict[str, dict[str, float | int | None]]:
        """By metric ``{"before", "after", "low", "high", "n"}``: means over facts and a 95 % interval of "after".

        The interval is over subjects; where all facts are of one edited model, that of the perplexity is over windows.
        `before` is of the facts that the unedited model can read; None where it has no meaning or was not measured. The
        interval is None where there are too few subjects.
        A metric that no fact allows is absent. Metrics of groups of probes come last.
        """
        groups = METRICS.of_groups(key for case in self.cases for key in case.after.values)
        summaries = {metric.key: self._summary(metric) for metric in (*METRICS.values(), *groups)}
        return {key: summary for key, summary in summaries.items() if summary is not None}

    @property
    def failures(self) -> list[Case]:
        """The cases whose edit failed."""
        return [case for case in self.cases if case.error]

    @property
    def crashes(self) -> list[Case]:
        """Those of them at which the program failed, not the method."""
        return [case for case in self.cases if case.crashed]

    def _summary(self, metric: Metric) -> dict[str, float | int | None] | None:
        """A metric over the facts that have it; None where there is none."""
        found = [(case, figures) for case in self.cases if (figures := metric.figures(case.after.values)) is not None]
        if not found:
            return None
        after = [figures for _, figures in found]
        # What the unedited model cannot read counts as missed, but it does not say how the model is.
        readable = [case for case, _ in found if case.before is None or not case.before.error]
        values = [case.before.values for case in readable if case.before is not None]
        before = [figures for one in values if (figures := metric.figures(one)) is not None]
        columns = list(zip(*after, strict=True))
        if not math.isfinite(figure := metric.aggregate(columns)):  # kappa, where all marks are the same
            return None
        cases = [case for case, _ in found]
        if metric.by_window is not None and _of_one_model(cases):
            bounds = over_windows(metric, cases)
        else:
            subjects = [case.fact.subject for case in cases]
            bounds = interval(columns, subjects, metric.combine, shares=metric.is_share)
        low, high = bounds or (None, None)
        known = before and len(before) == len(readable)
        return {
            "before": finite(metric.aggregate(list(zip(*before, strict=True)))) if known else None,
            "after": figure,
            "low": low,
            "high": high,
            "n": len(found),
        }

    def table(self, title: str = "") -> Table:
        """A table for a terminal."""
        table = Table(title=title, title_justify="left")
        for column in ("metric", "before", "after", "95 % interval", "n", ""):
            table.add_column(column, justify="left" if column in ("metric", "") else "right")
        metrics = self.metrics
        for key, values in metrics.items():
            metric = METRICS.named(key)
            if not set(metric.shown_with) <= set(metrics):
                continue
            cells = [_cell(values[part], metric.written) for part in ("before", "after")]
            low, high = values["low"], values["high"]
            bounds = "" if low is None else f"{_cell(low, metric.written)} to {_cell(high, metric.written)}"
            table.add_row(metric.line, *cells, bounds, str(values["n"]), metric.unit)
        return table

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=110, force_jupyter=False)
        console.print(self.table())
        assert isinstance(console.file, StringIO)
        return console.file.getvalue()


def _of_one_model(cases: Sequence[Case]) -> bool:
    """Whether all cases were measured on one edited model: what it gave to the held-out texts is the same."""
    read = [case.after.held_out for case in cases]
    return read[0] is not None and all(one == read[0] for one in read)


def over_windows(metric: Metric, cases: Sequence[Case]) -> tuple[float, float] | None:
    """A 95 % interval of a metric of the held-out texts, drawing windows; each counts once, whichever text it is of.

    None where the windows are not known, or there are fewer than two.
    """
    if metric.by_window is None:
        return None
    found = [metric.by_window(case.before, case.after) or {} for case in cases]
    values = [value for windows in found for value in windows.values()]
    windows = [window for windows in found for window in windows]
    if not all(map(math.isfinite, values)):
        return None
    return interval([values], windows, shares=metric.is_share)


@one_thread
def evaluate(lm: LanguageModel, facts: Sequence[Fact], settings: EvalSettings | None = None) -> Evaluation:
    """Measures the model with the edits that are applied now, and without them for comparison.

    Args:
        lm: a causal model; with no edit applied there is no "before".
        facts: what the edits should have made true, with the prompts that probe it.
        settings: what to measure.

    Where facts contradict or repeat one another a warning says so: all of them are scored, and no model can follow two
    that contradict (`corrigenda.data.requests.select_active` gives those in force).
    """
    facts = as_facts("evaluate", facts)
    settings = EvalSettings() if settings is None else settings
    check_class("evaluate", "settings", settings, EvalSettings)
    now = select_active(facts)
    if len(now.active) < len(facts):
        logger.warning(
            "%d of %d facts are contradicted by later ones and %d are asked for again (the first: %s); all are scored, "
            "though only the last request on each thing can hold",
            len(now.overwritten),
            len(facts),
            len(now.repeated),
            facts[min(now.last)].id,
        )
    if not lm.edits:
        return Evaluation(
            tuple(Case(f, None, m, error=m.error) for f, m in zip(facts, measure(lm, facts, settings), strict=True))
        )
    with lm.edits.suspended():
        before = measure(lm, facts, settings)
    after = measure(lm, facts, settings, before)
    return Evaluation(tuple(judged(*parts) for parts in zip(facts, before, after, strict=True)))


def _cell(value: float | int | None, unit: Unit) -> str:
    return "" if value is None else unit.text(value)
