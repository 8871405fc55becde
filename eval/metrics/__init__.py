"""Metrics: each is declared once, in the file of its family; tables, curves and the leaderboard read `METRICS`.

A metric from outside this package is one file that is imported before anything is measured::

    from eval.metrics import Needs, metric

    @metric("answer_length", title="length of the free answer", unit="words", better=None,
            needs=(Needs("free_answers", ("prompt",)),))
    def answer_length(before, after):
        answers = [record.answer for record in after.scored("prompt") if record.answer is not None]
        return sum(len(answer.split()) for answer in answers) if answers else None

A package that is installed can name this file as an entry point in the group ``corrigenda.metrics``; runs then find it.
"""

from importlib.metadata import entry_points

from eval.metrics import (
    accuracy,
    answers_kept,
    divergence,
    fluency,
    free_generation,
    native_consistency,
    perplexity,
    preservation,
    real_use,
    side_effects,
    success,
)
from eval.metrics.metric import CurveColumn, Groups, LeaderboardColumn, Metric, Needs
from eval.metrics.registry import Registry, metric_in
from eval.metrics.run_figures import RUN_FIGURES, RunFigure

METRICS = Registry(
    (
        *success.METRICS,
        *accuracy.METRICS,
        *free_generation.METRICS,
        *native_consistency.METRICS,
        *answers_kept.METRICS,
        *preservation.METRICS,
        success.WITH_STATEMENT_BEFORE,
        *divergence.METRICS,
        *side_effects.METRICS,
        *fluency.METRICS,
        *perplexity.METRICS,
        *real_use.METRICS,
    )
)
"""All metrics by key, in the order of the tables."""

metric = metric_in(METRICS)
register = METRICS.register


def load_installed() -> None:
    """Imports what installed packages name as entry points in the group ``corrigenda.metrics``.

    So that ``python run.py`` finds a metric of a package that is installed beside this one.
    """
    for point in entry_points(group="corrigenda.metrics"):
        point.load()


load_installed()

__all__ = [
    "METRICS",
    "RUN_FIGURES",
    "CurveColumn",
    "Groups",
    "LeaderboardColumn",
    "Metric",
    "Needs",
    "Registry",
    "RunFigure",
    "load_installed",
    "metric",
    "register",
]
