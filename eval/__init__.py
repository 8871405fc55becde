"""Evaluation: what an edit did, before and after, with intervals."""

from corrigenda.intervals import interval
from eval.evaluation import Case, Evaluation, evaluate, judged
from eval.measure import measure
from eval.metrics import METRICS
from eval.protocols.batch import run_batch
from eval.protocols.runs import EditRun
from eval.protocols.sequential import SequentialRun, run_sequential
from eval.protocols.settings import SequentialSettings
from eval.protocols.single import run_single
from eval.records import Measurement
from eval.settings import EvalSettings
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
