"""Sequences of edits on a tiny model, for tests of the protocol: facts, editors that note what is asked, runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from corrigenda import Edit, EditRefusedError, Fact, LanguageModel, Origin, ValueEdit
from corrigenda.data import FactSet
from corrigenda.facts import Probe
from corrigenda.runs.folder import RunFolder
from eval import EditRun, EvalSettings, SequentialRun, SequentialSettings

QUICK = EvalSettings(generate=False, perplexity_windows=0)
SUBJECTS = ("Thomas", "Danielle", "Ben", "river", "tower", "piano", "red", "blue", "green")


def facts_about(*targets: tuple[str, str]) -> FactSet:
    """Facts with the ids "0", "1", ...: a subject and what its city is to be."""
    found = (
        Fact(
            subject,
            "the city of {} is",
            new,
            "Berlin",
            id=str(number),
            paraphrases=(f"{subject} stands in",),
            neighbourhood=("the city of nine is",),
            locality=(Probe(f"the capital of {subject} is", "Paris"),),
        )
        for number, (subject, new) in enumerate(targets)
    )
    return FactSet("some", tuple(found))


def plain(number: int) -> FactSet:
    """So many facts that have nothing to do with one another."""
    return facts_about(*((subject, "Rome") for subject in SUBJECTS[:number]))


@dataclass(frozen=True)
class Nudge:
    """Adds a small random matrix for each fact, the same always; fails where it is told to.

    `asked` has for each call the ids of the facts whose edits were applied, and of those it was asked for.
    """

    name: ClassVar[str] = "nudge"

    size: float = 0.05
    refuses: str = ""
    crashes: str = field(default="", compare=False)  # a bug, which may be mended
    wrecks: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list, compare=False)

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> ValueEdit:
        applied = [fact.id for edit in lm.edits for fact in edit.origin.facts]
        ids = [fact.id for fact in facts]
        self.asked.append(("".join(applied), "".join(ids)))
        if set(ids) & set(self.crashes):
            raise ZeroDivisionError("a bug")
        if ids and set(ids) <= set(self.refuses):
            raise EditRefusedError("not these")
        shape = lm.memory(1).values.shape
        total = torch.zeros(shape)
        for id_ in ids:
            draw = torch.Generator().manual_seed(sum(map(ord, id_)))
            if id_ not in self.refuses:
                total += self.size * torch.randn(shape, generator=draw)
        report = [{"refused": "not this one"} if id_ in self.refuses else {"noted": id_} for id_ in ids]
        origin = Origin(lm.name, lm.fingerprint, self.name, {}, tuple(facts), tuple(report))
        return self._wrecking(ValueEdit.of(lm, origin, {1: total}), ids)

    def _wrecking(self, edit: ValueEdit, ids: Sequence[str]) -> ValueEdit:
        """With numbers that no editor could return: they come about in the forward."""
        if set(ids) & set(self.wrecks):
            edit.deltas[1].fill_(torch.nan)
        return edit


@dataclass(frozen=True)
class GrowingNudge(Nudge):
    """Its edit of more facts is that of fewer with more added."""

    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> ValueEdit:
        new = self.edit(lm, facts)
        if previous is None:
            return new
        assert isinstance(previous, ValueEdit)
        old, facts = previous.origin, (*previous.origin.facts, *facts)
        origin = Origin(old.model, old.fingerprint, old.editor, {}, facts, (*old.report, *new.origin.report))
        total = previous.deltas[1] + new.deltas[1].nan_to_num()
        return self._wrecking(ValueEdit.of(lm, origin, {1: total}), [fact.id for fact in new.origin.facts])


def sequence(
    lm: LanguageModel,
    facts: FactSet,
    editor: Any,
    folder: Path,
    *,
    measured: EvalSettings = QUICK,
    stop: Callable[[], bool] = lambda: False,
    notify: Callable[[Any], None] = lambda case: None,
    **settings: Any,
) -> SequentialRun:
    """A sequence that was run as far as it goes."""
    run = EditRun(lm, facts, editor, measured, RunFolder(folder), notify=notify)
    made = SequentialRun(run, SequentialSettings(**settings), (), stop)
    try:
        made.go()
    finally:
        assert not lm.edits
    return made


def timeless(run: SequentialRun) -> list[dict[str, Any]]:
    """The points of a curve without what two runs never share."""
    passing = ("seconds_per_edit", "peak_memory_mb")
    return [{key: value for key, value in point.items() if key not in passing} for point in run.curve]


def records(run: SequentialRun) -> list[dict[str, Any]]:
    """The cases in order, without the time."""
    return [run.run.cases[fact.id].to_dict() | {"seconds": None} for fact in run.run.facts]
