"""What the tests of sequences of edits share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tiny

from corrigenda import ContextEdit, Edit, EditRefusedError, Fact, LanguageModel, Origin
from corrigenda.data import FactSet
from corrigenda.runs.folder import RunFolder
from eval import EditRun, EvalSettings, Measurement, SequentialRun, SequentialSettings
from eval.protocols import checkpoints, pre_edit, sequential

SMALL = EvalSettings(max_new_tokens=4, preservation_tokens=3, perplexity_windows=3, perplexity_window=16)


def fact(subject: str, new: str, number: int = 0, **more: Any) -> Fact:
    return Fact(subject, "the city of {} is", new, "Berlin", id=f"{number}-{subject}-{new}", **more)


def facts(*targets: tuple[str, str]) -> FactSet:
    return FactSet("some", tuple(fact(subject, new, number) for number, (subject, new) in enumerate(targets)))


@dataclass(frozen=True)
class Notes:
    """Notes "subject=target;". Refuses subjects and forgets others when it is told to."""

    name: ClassVar[str] = "notes"

    refused: tuple[str, ...] = ()
    crashes: tuple[str, ...] = ()
    asked: list[Any] = field(default_factory=list, compare=False)

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> ContextEdit:
        self.asked.append((lm.edits.before(""), [fact.id for fact in facts]))
        for fact in facts:
            if fact.subject in self.refused:
                raise EditRefusedError("not this one")
            if fact.subject in self.crashes:
                raise ZeroDivisionError("a bug")
        text = "".join(f"{fact.subject}={fact.target_new};" for fact in facts)
        report = tuple({"noted": fact.id} for fact in facts)
        return ContextEdit(Origin(lm.name, lm.fingerprint, self.name, {}, tuple(facts), report), text)


@dataclass(frozen=True)
class Growing(Notes):
    """Its edit of more facts contains the one of fewer."""

    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> ContextEdit:
        new = self.edit(lm, facts)
        if previous is None:
            return new
        assert isinstance(previous, ContextEdit)
        origin = Origin(
            lm.name,
            lm.fingerprint,
            self.name,
            {},
            (*previous.origin.facts, *facts),
            (*previous.origin.report, *new.origin.report),
        )
        return ContextEdit(origin, previous.text + new.text)


def read_notes(
    lm: LanguageModel,
    facts: Sequence[Fact],
    settings: EvalSettings | None = None,
    before: Sequence[Measurement] | None = None,
    held_out: Any = None,
) -> list[Measurement]:
    """Reliable where the last note on the subject is the fact's; preserved as long as there are fewer than 3 notes."""
    assert settings is not None
    noted = dict(note.split("=") for note in lm.edits.before("").split(";") if note)
    number = lm.edits.before("").count(";")
    found = []
    for asked in facts:
        values = {"token_accuracy": float(noted.get(asked.subject) == asked.target_new)}
        if settings.generate:
            values["free_generation_strict"] = values["token_accuracy"]
        if before is not None:
            values["preservation"] = float(number < 3)
        if settings.perplexity_windows:
            level = numbered(lm, settings) if held_out is None else held_out
            values["log_perplexity"] = level
            if before is not None:
                values["perplexity_drift"] = level - before[0].values["log_perplexity"]
        found.append(Measurement({"prompt": [{"prompt": asked.statement}]}, values))
    return found


def numbered(lm: LanguageModel, _settings: EvalSettings) -> float:
    return 0.5 * lm.edits.before("").count(";")


def given_notes(monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """A model whose measurements are read off its notes."""
    for module in (sequential, checkpoints, pre_edit):
        monkeypatch.setattr(module, "measure", read_notes)
    for module in (checkpoints, pre_edit):
        monkeypatch.setattr(module, "read_held_out", numbered)
    return tiny.llama()


def go(
    lm: LanguageModel,
    facts: FactSet,
    editor: Any,
    folder: Path,
    settings: SequentialSettings,
    fixed: Sequence[Fact] = (),
    stop: Callable[[], bool] = lambda: False,
) -> SequentialRun:
    run = SequentialRun(EditRun(lm, facts, editor, SMALL, RunFolder(folder)), settings, fixed, stop)
    assert run.go() == (not stop())
    assert not lm.edits
    return run


def after(run: SequentialRun, metric: str) -> list[tuple[int, float]]:
    return [(point["t"], point["metrics"][metric]["after"]) for point in run.curve]
