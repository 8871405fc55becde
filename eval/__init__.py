"""Evaluation: what an edit did, before and after, with intervals."""

from corrigenda.intervals import interval
from eval.evaluation import METRICS, Case, Evaluation, evaluate, judged
from eval.measure import EvalSettings, Measurement, measure
from eval.protocols.runs import EditRun, run_batch, run_single
from eval.protocols.sequential import SequentialRun, SequentialSettings, run_sequential
from eval.statistics.paired import paired_test

__all__ = [
    "METRICS",
    "Case",
    "EditRun",
    "EvalSettings",
    "Evaluation",
    "Measurement",
    "SequentialRun",
    "SequentialSettings",
    "evaluate",
    "interval",
    "judged",
    "measure",
    "paired_test",
    "run_batch",
    "run_sequential",
    "run_single",
]
