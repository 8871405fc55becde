"""`EditRun`: a run of an editor on facts, whose cases and edits are kept so that a run killed at any moment goes on.

What an editor is, is said here by its methods alone: the evaluation knows no editor.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from corrigenda import ContextLengthError, Edit, EditRefusedError, Fact, LanguageModel
from corrigenda.data import FactSet
from corrigenda.data.requests import left_out, select_active
from corrigenda.disturbance import known, noted
from corrigenda.runs.environment import peak_memory_mb
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.records import CRASHED
from eval.evaluation import Case, Evaluation
from eval.protocols.pre_edit import PreEditMeasurement, ReducedEvaluation
from eval.records import DEFINITIONS
from eval.scoring.fitting import prepare
from eval.settings import EvalSettings

CHUNK = 10
"""Facts whose prompts are measured together before they are edited."""

logger = logging.getLogger(__name__)

Notify = Callable[[Case], None]
"""Is told of each case when it is finished."""


class SupportsEdit(Protocol):
    """Turns facts into an `Edit`, and leaves the model as it was.

    An editor whose edits grow may have ``extend(lm, previous, facts) -> Edit`` too: given its edit of earlier facts, or
    None, and the unedited model, it returns one of all of them, which takes the previous one's place.
    """

    @property
    def name(self) -> str:
        """The method, in titles and records."""
        ...

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> Edit:
        """One edit that makes all the facts true of the model; EditRefusedError where it cannot or will not."""
        ...


@dataclass(frozen=True)
class Attempt:
    """What came of asking an editor: an edit and its seconds, or why there is none."""

    edit: Edit | None
    seconds: float
    error: str = ""

    @property
    def crashed(self) -> bool:
        """Whether the program failed, not the method: it is worth another try."""
        return self.error.startswith(CRASHED)


def attempt(
    lm: LanguageModel,
    editor: SupportsEdit,
    settings: EvalSettings,
    facts: Sequence[Fact],
    make: Callable[[Sequence[Fact]], Edit] | None = None,
) -> Attempt:
    """Asks an editor for an edit of some facts; with `make`, in another way than by its `edit`.

    Facts that are longer than the model reads are left out; where there is no other, that is a refusal.

    Only a refusal is a result. Any other error is a crash: the edit counts as failed, but is tried again when the run
    goes on. It is noted and not raised, so that the other facts are done all the same.
    """
    reasons = [prepare(lm, fact, settings).error for fact in facts]
    if all(reasons) and reasons:
        return Attempt(None, 0.0, f"refused: {reasons[0]}")
    facts = [fact for fact, reason in zip(facts, reasons, strict=True) if not reason]
    begin = time.perf_counter()
    try:
        edit, error = (make(facts) if make is not None else editor.edit(lm, facts)), ""
        if not isinstance(edit, Edit):
            raise TypeError(f"an editor gives an Edit, and {editor.name} gave {type(edit).__name__}")
        edit = _looked_at(lm, edit, facts, settings.strict)
    except (EditRefusedError, ContextLengthError) as refusal:
        edit, error = None, f"refused: {refusal}"
    except Exception as crash:
        logger.exception("%s crashed on %s", editor.name, ", ".join(fact.id for fact in facts))
        edit, error = None, f"{CRASHED}{crash!r}"
    return Attempt(edit, time.perf_counter() - begin, error)


def _looked_at(lm: LanguageModel, edit: Edit, facts: Sequence[Fact], strict: bool) -> Edit:
    """An edit of which is known how far it disturbs other texts; those of editors from outside were not looked at.

    Raises:
        EditRefusedError: it is `strict`, and a bound is passed.
    """
    if known(edit, len(facts)) is None:
        edit = noted(lm, edit, len(facts))
    found = known(edit, len(facts))
    if strict and found is not None and found.beyond:
        raise EditRefusedError(f"it disturbs other texts: {found}; eval.strict=false allows that")
    return edit


def _in_words(editor: SupportsEdit) -> str:
    """What tells an editor from others, as far as it says it: a frozen dataclass by its settings, others by name."""
    declared = getattr(editor, "__dataclass_params__", None)
    if declared is None or not declared.frozen:
        return editor.name
    settings = {each.name: getattr(editor, each.name) for each in fields(editor) if each.compare}  # type: ignore[arg-type]
    return editor.name if " at 0x" in repr(settings) else f"{editor.name} {settings}"


class EditRun:
    """One model, one editor, some facts, and the folder where the results go and where finished cases are found.

    Args:
        lm: the model, unedited.
        facts: the facts.
        editor: the editor.
        settings: what to measure.
        folder: the run's folder.
        save_edits: whether to save the edits of single facts (what a run needs to go on is saved in any case).
        notify: is told of each case when it is finished.
        before: a folder where the unedited model's measurements are kept, for other runs to take up; None: each run
            makes its own.

    Attributes:
        cases: by id, what came of the facts so far.
        crashed: whether the program failed at an edit of several facts. What comes after stands on the model as it
            then was: it is told and not written, and is done again when the run goes on.
        most_memory_mb: the most that one of its workers has held (MiB), where there are any.

    Raises:
        ValueError: the folder holds a run of another model, other facts, or another editor or measurement; or edits are
            applied to the model, which would be in what is measured after the run's own edits and not in what is
            measured before.
    """

    def __init__(
        self,
        lm: LanguageModel,
        facts: FactSet,
        editor: SupportsEdit,
        settings: EvalSettings,
        folder: RunFolder,
        save_edits: bool = True,
        notify: Notify = lambda case: None,
        before: Path | None = None,
    ) -> None:
        if lm.edits:
            kinds = ", ".join(edit.kind for edit in lm.edits)
            raise ValueError(
                f"a run begins with the unedited model, and {lm.name} has edits applied ({kinds}): revert them"
            )
        self.lm = lm
        self.facts = facts
        self.editor = editor
        self.settings = settings
        self.folder = folder
        self.save_edits = save_edits
        self.notify = notify
        self.before = before
        self.most_memory_mb = 0.0
        self.numbers = {fact.id: number for number, fact in enumerate(facts)}
        found = {"model_fingerprint": lm.fingerprint, "data_fingerprint": facts.fingerprint}
        if folder.config is None:  # else that says it all
            found |= {"editor": _in_words(editor), "settings": repr(settings)}
        folder.identify(**found)
        self.read()

    def read(self) -> None:
        """Takes up what the folder holds, and nothing else."""
        self.cases = {case.fact.id: case for case in map(Case.from_dict, self.folder.cases())}
        self.crashed = False

    @property
    def n_done(self) -> int:
        """How many facts are finished."""
        return sum(not case.crashed for case in self.cases.values())

    def is_done(self, fact: Fact) -> bool:
        """Whether a fact is finished; one that crashed is not."""
        return fact.id in self.cases and not self.cases[fact.id].crashed

    @property
    def evaluation(self) -> Evaluation:
        """All cases, each scored when its edit was made; without the facts that a batch left out.

        Of a sequence that its collapse stop ended these are the facts up to there (``n_facts`` of the summary).
        """
        cases = (self.cases[fact.id] for fact in self.facts if fact.id in self.cases)
        return Evaluation(tuple(case for case in cases if not left_out(case.edit)))

    def pre_edit(
        self,
        facts: Sequence[Fact],
        settings: EvalSettings,
        chunk: int | None = None,
        folder: Path | None = None,
        reduced: ReducedEvaluation | None = None,
    ) -> PreEditMeasurement:
        """What the unedited model does with facts: where runs share it, else in a folder of one's own, or nowhere.

        Args:
            facts: the facts.
            settings: what to measure.
            chunk: how many facts are measured together; by default `CHUNK`.
            folder: where it is kept, unless runs share it.
            reduced: facts of which less is measured, and what.
        """
        kept_in = folder if self.before is None else self.before
        return PreEditMeasurement(self.lm, facts, settings, CHUNK if chunk is None else chunk, kept_in, reduced)

    @property
    def edits(self) -> list[Edit]:
        """The one edit of a batch run; none where it failed."""
        path = self.folder.edit_path(0, "all")
        return [Edit.load(path)] if (path / "edit.json").is_file() else []

    def attempt(self, facts: Sequence[Fact], make: Callable[[Sequence[Fact]], Edit] | None = None) -> Attempt:
        """Asks the editor for an edit of some facts; see `attempt`."""
        made = attempt(self.lm, self.editor, self.settings, facts, make)
        self.crashed = self.crashed or made.crashed
        return made

    def finished(self, case: Case, edit: Edit | None = None) -> None:
        """Notes a finished case, once, with its edit."""
        if self.is_done(case.fact):
            return
        if edit is not None and self.save_edits:
            self.folder.save_edit(edit, self.numbers[case.fact.id], case.fact.id)
        record = case.to_dict()
        if case.crashed or not self.crashed:
            self.folder.append(record)  # last: a fact with a line here is done
        # As it stands in the file: without the distributions, which would fill the memory.
        self.cases[case.fact.id] = Case.from_dict(record)
        self.notify(self.cases[case.fact.id])

    def summary(self, mode: str) -> dict[str, Any]:
        """What every run's summary holds."""
        seconds = [case.seconds for case in self.cases.values() if case.seconds is not None]
        evaluation = self.evaluation
        now = select_active(list(self.facts)) if mode == "batch" else None
        return {
            "editor": self.editor.name,
            "model": self.lm.name,
            "model_fingerprint": self.lm.fingerprint,
            "data": self.facts.name,
            "data_fingerprint": self.facts.fingerprint,
            "data_unordered_fingerprint": self.facts.unordered_fingerprint,
            "order": self.facts.order,
            "mode": mode,
            "definitions": DEFINITIONS,
            "n_facts": len(self.cases),
            "n_failed": len(evaluation.failures),
            **({} if now is None else {"n_overwritten": len(now.overwritten), "n_repeated": len(now.repeated)}),
            "skipped_records": [str(error) for error in self.facts.skipped],
            "seconds_per_edit": sum(seconds) / len(seconds) if seconds else None,
            "peak_memory_mb": max(peak_memory_mb(), self.most_memory_mb),
            "metrics": evaluation.metrics,
        }


def report(edit: Edit | None) -> dict[str, Any] | None:
    """What an editor reported of its last fact."""
    return None if edit is None or not edit.origin.report else dict(edit.origin.report[-1])


def reports_of(edit: Edit | None) -> dict[str, dict[str, Any]]:
    """By fact, what an editor reported of it."""
    if edit is None:
        return {}
    return {fact.id: dict(said) for fact, said in zip(edit.origin.facts, edit.origin.report, strict=False)}
