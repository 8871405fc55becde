"""Evaluation: what an edit did, before and after, with intervals."""

from typing import TYPE_CHECKING

from corrigenda.system.lazy import lazily

if TYPE_CHECKING:
    from corrigenda.intervals import interval as interval
    from eval.evaluation import Case as Case
    from eval.evaluation import Evaluation as Evaluation
    from eval.evaluation import evaluate as evaluate
    from eval.evaluation import judged as judged
    from eval.measure import measure as measure
    from eval.measurement import Measurement as Measurement
    from eval.metrics import METRICS as METRICS
    from eval.protocols.batch import run_batch as run_batch
    from eval.protocols.fine_tuning import FineTuningSettings as FineTuningSettings
    from eval.protocols.runs import EditRun as EditRun
    from eval.protocols.sequential import SequentialRun as SequentialRun
    from eval.protocols.sequential import run_sequential as run_sequential
    from eval.protocols.settings import CollapseStopSettings as CollapseStopSettings
    from eval.protocols.settings import SequentialSettings as SequentialSettings
    from eval.protocols.single import run_single as run_single
    from eval.real_use.settings import RealUse as RealUse
    from eval.settings import EvalSettings as EvalSettings
    from eval.statistics.paired import paired_test as paired_test
    from eval.steering import has_word_of as has_word_of
    from eval.steering import steering_report as steering_report

__all__ = lazily(__name__)
