"""The single protocol: each fact is edited alone, from the unedited model."""

import importlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.runs.environment import peak_memory_mb
from corrigenda.system.progress import stage
from corrigenda.system.workers import Workers
from eval.evaluation import Case, judged
from eval.measure import measure, on_windows
from eval.metrics import METRICS
from eval.protocols.pre_edit import PreEditMeasurement
from eval.protocols.runs import CHUNK, EditRun, SupportsEdit, attempt, report
from eval.scoring.held_out import in_turn
from eval.settings import EvalSettings


def run_single(run: EditRun, workers: Workers | None = None) -> None:
    """Edits each fact from the clean model, and scores it.

    Args:
        run: the model, facts, editor and folder.
        workers: processes that the facts are spread over; by default none. The cases are the same, and stand in the
            order in which they were finished. A worker takes facts that are measured together, as long as there are
            such: the unedited model is measured where the facts are edited.

    Raises:
        RuntimeError: a worker failed. What was finished is kept.
    """
    workers = workers or Workers()
    facts = list(run.facts)
    pre_edit = run.pre_edit(facts, run.settings)
    shared = _Cases(run.lm, facts, run.editor, run.settings, pre_edit, run.save_edits, METRICS.modules)
    left = [number for number, fact in enumerate(facts) if not run.is_done(fact)]
    found = workers.each(shared, _done, left, lambda number: f"fact {facts[number].id}", lambda number: number // CHUNK)
    for _, one in found:
        if workers.number:
            run.most_memory_mb = max(run.most_memory_mb, one.memory_mb)
        run.finished(one.case, one.edit)


@dataclass(frozen=True)
class _Cases:
    """What the cases of a run need; `metrics` are the modules that declare them, by key."""

    lm: LanguageModel
    facts: Sequence[Fact]
    editor: SupportsEdit
    settings: EvalSettings
    pre_edit: PreEditMeasurement
    keeps_edits: bool
    metrics: Mapping[str, str]


@dataclass(frozen=True)
class _Done:
    """A finished case.

    Attributes:
        case: as it stands in the records: without the distributions, which are large.
        edit: its edit, if there is one to be kept.
        memory_mb: the most memory that the process has held.
    """

    case: Case
    edit: Edit | None
    memory_mb: float


def _done(cases: _Cases, number: int) -> _Done:
    """Edits one fact, and scores it."""
    _declare(cases.metrics)
    lm, fact = cases.lm, cases.facts[number]
    chunks = cases.pre_edit.chunks
    told = f"Measuring the unedited model, part {number // CHUNK + 1} of {len(chunks)}"
    with stage(told, at_once=False, bar=False):
        before = cases.pre_edit.of(number)
    before = on_windows(before, in_turn(number, cases.settings))
    made = attempt(lm, cases.editor, cases.settings, [fact])
    with made.edit.applied(lm) if made.edit is not None else nullcontext():
        [after] = measure(lm, [fact], cases.settings, [before])
    seconds = None if before.error else made.seconds  # what cannot be read is no edit
    case = judged(fact, before, after, report(made.edit), seconds, made.error)
    return _Done(Case.from_dict(case.to_dict()), made.edit if cases.keeps_edits else None, peak_memory_mb())


def _declare(metrics: Mapping[str, str]) -> None:
    """Sees to it that this process, which may be a worker, knows the metrics of the run: those from outside, too.

    Raises:
        ValueError: one is not known here.
    """
    for key, module in metrics.items():
        if key not in METRICS and module:
            importlib.import_module(module)
        if key not in METRICS:
            raise ValueError(
                f"the metric {key!r} is not declared when {module or 'its module'} is imported, as a worker does; "
                "declare it in the module of its function, or take workers.number=0"
            )
