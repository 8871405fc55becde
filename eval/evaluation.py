"""Before and after: cases, their summary with intervals, and the table that shows it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from corrigenda import Fact, LanguageModel
from corrigenda.intervals import interval
from eval.groups import group_metrics, group_title, is_group_accuracy
from eval.measure import EvalSettings, Measurement, measure
from eval.statistics.paired import harmonic_mean

METRICS: dict[str, tuple[str, str]] = {
    "efficacy_success": ("efficacy success (ES)", "%"),
    "efficacy_magnitude": ("efficacy magnitude (EM)", "%"),
    "paraphrase_success": ("paraphrase success (PS)", "%"),
    "paraphrase_magnitude": ("paraphrase magnitude (PM)", "%"),
    "neighbourhood_success": ("neighbourhood success (NS)", "%"),
    "neighbourhood_magnitude": ("neighbourhood magnitude (NM)", "%"),
    "score": ("score (S)", "%"),
    "token_accuracy": ("token accuracy, teacher-forced", "%"),
    "paraphrase_token_accuracy": ("  on paraphrases", "%"),
    "portability_token_accuracy": ("  on consequences (portability)", "%"),
    "free_generation_strict": ("free generation, strict", "%"),
    "free_generation_lenient": ("free generation, lenient", "%"),
    "paraphrase_free_generation_strict": ("  on paraphrases, strict", "%"),
    "paraphrase_free_generation_lenient": ("  on paraphrases, lenient", "%"),
    "portability_free_generation_strict": ("  on consequences, strict", "%"),
    "portability_free_generation_lenient": ("  on consequences, lenient", "%"),
    "preservation": ("preservation of other answers", "%"),
    "locality_token_agreement": ("  same tokens, teacher-forced (locality)", "%"),
    "neighbourhood_success_plus": ("neighbourhood success + (statement before)", "%"),
    "neighbourhood_kl": ("neighbourhood KL", "nats"),
    "fluency": ("fluency (n-gram entropy)", "bits"),
    "perplexity_drift": ("perplexity drift", "nats"),
    "log_perplexity": ("  log perplexity of the held-out text", "nats"),
}
"""By key: the name in tables and the unit."""

BROUGHT_ABOUT = frozenset(
    {"efficacy_success", "paraphrase_success"}
    | {
        f"{prefix}{key}"
        for prefix in ("", "paraphrase_", "portability_")
        for key in ("token_accuracy", "free_generation_strict", "free_generation_lenient")
    }
)
"""The metrics that say whether an edit did what it should; an edit that failed did not."""

NOT_FINITE = "not finite"
"""How the error of an edit begins that left the model without numbers. Of such an edit some figures are in no mean."""

SCORE_PARTS = ("efficacy_success", "paraphrase_success", "neighbourhood_success")


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

    def to_dict(self) -> dict[str, Any]:
        """The case as JSON values: a line of ``cases.jsonl``."""

        def plain(measurement: Measurement | None) -> dict[str, Any] | None:
            if measurement is None:
                return None
            values = {key: value for key, value in measurement.values.items() if math.isfinite(value)}
            return {"values": values, "prompts": _finite(measurement.prompts)}

        return {
            "id": self.fact.id,
            "fact": self.fact.to_dict(),
            "verb": self.fact.verb,
            "edit": None if self.edit is None else _finite(self.edit),
            "seconds": self.seconds,
            "error": self.error,
            "before": plain(self.before),
            "after": plain(self.after),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Case:
        """The case of a line that `to_dict` gave; what only a running comparison needs is not in it."""

        def measurement(value: Mapping[str, Any] | None) -> Measurement | None:
            return None if value is None else Measurement(prompts=dict(value["prompts"]), values=dict(value["values"]))

        after = measurement(record["after"])
        assert after is not None
        return cls(
            Fact.from_dict(record["fact"]),
            measurement(record["before"]),
            after,
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
    if not error and not all(map(math.isfinite, _numbers(after))):
        error = f"{NOT_FINITE}: the edited model gives no numbers"
    return Case(fact, before, failed(after) if error else after, edit, seconds, error)


def _numbers(measurement: Measurement) -> Iterator[float]:
    """What has to be a number: the values, and the log-probabilities that success rates do not show."""
    yield from measurement.values.values()
    for records in measurement.prompts.values():
        for record in records:
            for name in ("log_probs", "log_probs_new", "log_probs_true"):
                yield from record.get(name, ())


def failed(state: Measurement) -> Measurement:
    """The measurement of an edit that failed, given that of the model as it is (unedited, or with other edits).

    What the edit should have brought about counts as not brought about, even where the model happens to give it; what
    it should have left alone is as measured. Figures that are no numbers are left out.
    """
    values = {key: value for key, value in state.values.items() if math.isfinite(value)}
    missed = {key: 0.0 for key in values if key in BROUGHT_ABOUT or is_group_accuracy(key)}
    return Measurement(prompts=state.prompts, values=values | missed)


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

        `before` is None where it has no meaning or was not measured, the interval where there are too few subjects.
        A metric that no fact allows is absent. Metrics of groups of probes come last (see `eval.groups`).
        """
        found: dict[str, dict[str, float | int | None]] = {}
        for key in [*METRICS, *group_metrics(key for case in self.cases for key in case.after.values)]:
            summary = self._score() if key == "score" else self._mean(key)
            if summary is not None:
                found[key] = summary
        return found

    @property
    def failures(self) -> list[Case]:
        """The cases whose edit failed."""
        return [case for case in self.cases if case.error]

    def _mean(self, key: str) -> dict[str, float | int | None] | None:
        cases = [case for case in self.cases if math.isfinite(case.after.values.get(key, math.nan))]
        if not cases:
            return None
        after = [case.after.values[key] for case in cases]
        before = [case.before.values[key] for case in cases if case.before is not None and key in case.before.values]
        bounds = interval([after], [case.fact.subject for case in cases])
        return _summary(fmean(before) if len(before) == len(cases) else None, fmean(after), bounds, len(cases))

    def _score(self) -> dict[str, float | int | None] | None:
        """The harmonic mean of the three means, over the facts that have all three."""
        cases = [case for case in self.cases if all(part in case.after.values for part in SCORE_PARTS)]
        if not cases:
            return None

        def columns(values: Sequence[dict[str, float]]) -> list[list[float]]:
            return [[value[part] for value in values] for part in SCORE_PARTS]

        after = columns([case.after.values for case in cases])
        old = [case.before.values for case in cases if case.before is not None]
        before = None
        if len(old) == len(cases):
            before = float(harmonic_mean(*(np.array(fmean(column)) for column in columns(old))))
        value = float(harmonic_mean(*(np.array(fmean(column)) for column in after)))
        return _summary(
            before, value, interval(after, [case.fact.subject for case in cases], harmonic_mean), len(cases)
        )

    def table(self, title: str = "") -> Table:
        """A table for a terminal."""
        table = Table(title=title, title_justify="left")
        for column in ("metric", "before", "after", "95 % interval", "n", ""):
            table.add_column(column, justify="left" if column in ("metric", "") else "right")
        metrics = self.metrics
        if not {"preservation", "perplexity_drift"} <= set(metrics):
            # The harmonic mean can reward a wrecked model; it is not shown without what would tell.
            metrics.pop("score", None)
        for key, values in metrics.items():
            name, unit = METRICS[key] if key in METRICS else group_title(key)
            cells = [_cell(values[part], unit) for part in ("before", "after")]
            low, high = values["low"], values["high"]
            bounds = "" if low is None else f"{_cell(low, unit)} to {_cell(high, unit)}"
            table.add_row(name, *cells, bounds, str(values["n"]), unit)
        return table

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=110)
        console.print(self.table())
        assert isinstance(console.file, StringIO)
        return console.file.getvalue()


def evaluate(lm: LanguageModel, facts: Sequence[Fact], settings: EvalSettings | None = None) -> Evaluation:
    """Measures the model with the edits that are applied now, and without them for comparison.

    Args:
        lm: a causal model; with no edit applied there is no "before".
        facts: what the edits should have made true, with the prompts that probe it.
        settings: what to measure.
    """
    settings = settings or EvalSettings()
    if not lm.edits:
        return Evaluation(tuple(Case(f, None, m) for f, m in zip(facts, measure(lm, facts, settings), strict=True)))
    with lm.edits.suspended():
        before = measure(lm, facts, settings)
    after = measure(lm, facts, settings, before)
    return Evaluation(tuple(judged(*parts) for parts in zip(facts, before, after, strict=True)))


def _finite(value: Any) -> Any:
    """A nested value for JSON, which has no word for what is not finite: None stands in its place."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _summary(
    before: float | None, after: float, bounds: tuple[float, float] | None, n: int
) -> dict[str, float | int | None]:
    low, high = bounds or (None, None)
    return {"before": before, "after": after, "low": low, "high": high, "n": n}


def _cell(value: float | int | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}" if unit == "%" else f"{value:.3f}"
