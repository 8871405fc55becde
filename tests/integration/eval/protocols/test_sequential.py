"""The sequential protocol against hand computation: order, regimes, contradictions, the fixed set, and going on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tiny
import torch

from corrigenda import ContextEdit, Edit, EditRefusedError, Fact, LanguageModel, Origin, ValueEdit
from corrigenda.data import FactSet
from corrigenda.facts import Probe
from corrigenda.runs.folder import RunFolder
from eval import (
    EditRun,
    EvalSettings,
    Measurement,
    SequentialRun,
    SequentialSettings,
    measure,
)
from eval.protocols import baseline, checkpoints, runs, sequential
from eval.protocols.batch import run_batch
from eval.protocols.sequential import run_sequential
from eval.protocols.single import run_single

SUBJECTS = ["Thomas", "Danielle", "Ben", "river", "tower", "piano", "red"]
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
        self.asked.append((lm.edits.context, [fact.id for fact in facts]))
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
    noted = dict(note.split("=") for note in lm.edits.context.split(";") if note)
    number = lm.edits.context.count(";")
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
    return 0.5 * lm.edits.context.count(";")


@pytest.fixture
def by_notes(monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    for module in (sequential, checkpoints, baseline):
        monkeypatch.setattr(module, "measure", read_notes)
    for module in (checkpoints, baseline):
        monkeypatch.setattr(module, "read_held_out", numbered)
    return tiny.build("llama")


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


@pytest.mark.parametrize("editor", [Notes(), Growing()], ids=["stacked", "extended"])
@pytest.mark.parametrize("regime", ["auto", "together"])
def test_stopped_anywhere_it_goes_on_and_ends_the_same(
    by_notes: LanguageModel, tmp_path: Path, editor: Notes, regime: Any
) -> None:
    """Stopped at the n-th time it could be, for every n, and gone on with at once."""
    some = facts(("Ben", "Rome"), ("red", "Rome"), ("Ben", "Paris"), ("Ben", "Paris"), ("six", "Rome"))
    fixed = [Fact("x", "{} is", "a", locality=(Probe("y", "z"),))]
    settings = SequentialSettings(checkpoints=(1, 3), every=2, chunk=2, regime=regime)
    calm = go(by_notes, some, editor, tmp_path / "calm", settings, fixed)

    def timeless(run: SequentialRun) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in point.items() if k not in ("seconds_per_edit", "peak_memory_mb")} for point in run.curve
        ]

    for patience in range(3, 12):  # with fewer it is asked again before anything is done
        asked = 0

        def stop(patience: int = patience) -> bool:
            nonlocal asked
            asked += 1
            return asked > patience

        goes = 0
        while True:
            asked, goes = 0, goes + 1
            run = SequentialRun(
                EditRun(by_notes, some, editor, SMALL, RunFolder(tmp_path / f"{patience}")), settings, fixed, stop
            )
            ended = run.go()
            assert not by_notes.edits
            if ended or goes > 40:
                break
        assert ended
        assert timeless(run) == timeless(calm)
        assert [case.after for case in run.run.evaluation.cases] == [case.after for case in calm.run.evaluation.cases]
    editor.asked.clear()


@dataclass(frozen=True)
class Nudge:
    """Adds a small random matrix for each fact; the same always."""

    name: ClassVar[str] = "nudge"

    size: float = 0.05

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> ValueEdit:
        draw = torch.Generator().manual_seed(sum(map(ord, facts[0].id)))
        shape = lm.memory(1).values.shape
        return ValueEdit.of(lm, Origin.of(lm, self, facts), {1: self.size * torch.randn(shape, generator=draw)})


def real(number: int) -> FactSet:
    subjects = [*SUBJECTS, "blue", "green"]
    return FactSet(
        "real",
        tuple(
            fact(
                subject,
                "Rome",
                place,
                paraphrases=(f"{subject} stands in",),
                neighbourhood=("the city of nine is",),
                locality=(Probe(f"the capital of {subject} is", "Paris"),),
            )
            for place, subject in enumerate(subjects[:number])
        ),
    )


@pytest.mark.parametrize("mode", ["single", "batch", "sequential"])
def test_runs_share_what_the_unedited_model_does(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are the same to the last bit; the unedited model is measured once for a model, facts and settings."""
    lm, some = tiny.build("llama"), real(7)
    measured = 0
    monkeypatch.setattr(runs, "CHUNK", 3)

    def counted(lm: LanguageModel, facts: Sequence[Fact], settings: EvalSettings, **more: Any) -> list[Measurement]:
        nonlocal measured
        measured += len(facts)
        return measure(lm, facts, settings, **more)

    monkeypatch.setattr(baseline, "measure", counted)

    def records(name: str, before: Path | None, settings: EvalSettings = SMALL) -> tuple[str, int]:
        nonlocal measured
        measured = 0
        run = EditRun(lm, some, Nudge(), settings, RunFolder(tmp_path / name), before=before)
        if mode == "sequential":
            run_sequential(run, SequentialSettings(checkpoints=(5,), chunk=3), list(real(9))[7:])
        else:
            {"single": run_single, "batch": run_batch}[mode](run)
        cases = [case.to_dict() | {"seconds": None} for case in run.cases.values()]
        return json.dumps(cases), measured

    whole = 9 if mode == "sequential" else 7
    alone, first = records("alone", None), records("first", tmp_path / "before")
    assert alone == first
    assert alone[1] == whole
    assert records("second", tmp_path / "before") == (first[0], 0)
    other = replace(SMALL, max_new_tokens=3)
    assert records("other", tmp_path / "before", other) == (records("apart", None, other)[0], whole)
    # What was cut short is measured again: the file that ends a chunk is not there.
    for path in (tmp_path / "before").glob("*/0000.json"):
        path.unlink()
    assert records("third", tmp_path / "before")[0] == alone[0]
