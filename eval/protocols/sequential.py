"""The sequential protocol: edits 1 .. T on one model; `eval.protocols.checkpoints` scores how all of them stand."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from corrigenda import Edit, Fact
from corrigenda.data.requests import history
from corrigenda.runs.records import CRASHED
from eval.evaluation import Case, Evaluation, judged
from eval.measure import measure
from eval.protocols.baseline import Baseline
from eval.protocols.checkpoints import Checkpoints, fixed_settings, n_prompts
from eval.protocols.fixed_locality import Fixed, fixed_locality, parts_of
from eval.protocols.position import Position, SavedPosition
from eval.protocols.runs import Attempt, EditRun, reports_of
from eval.protocols.settings import Regime, SequentialSettings
from eval.settings import EvalSettings


class SequentialRun:
    """A sequence of edits of one run; `go` makes and scores what is not done yet.

    Args:
        run: the model, facts, editor and folder.
        settings: the protocol.
        fixed: other facts, whose neighbourhood and locality prompts are the fixed locality set; those that name an
            edited subject are left out. By name where its parts are reported apart, too.
        stop: asked now and then whether to stop there, to go on another time.
        before: the folder where the unedited model's measurements are kept, for runs of the same model, facts and
            evaluation alone. By default one in the run's folder, or the run's own `before`, where any runs meet.

    Raises:
        ValueError: there is no fact, the editor cannot do what the regime asks for, or every prompt of the fixed
            locality set names an edited subject.
    """

    def __init__(
        self,
        run: EditRun,
        settings: SequentialSettings,
        fixed: Fixed = (),
        stop: Callable[[], bool] = lambda: False,
        before: Path | None = None,
    ) -> None:
        if not len(run.facts):
            raise ValueError("a sequence of edits needs at least one fact")
        self.run = run
        self.settings = settings
        parts = {name: fixed_locality(facts, list(run.facts)) for name, facts in parts_of(fixed).items()}
        self.fixed = [fact for facts in parts.values() for fact in facts]
        self._history = history(list(run.facts))
        self.regime = self._regime()
        self._stop = stop

        def baseline(facts: Sequence[Fact], measured: EvalSettings, name: str) -> Baseline:
            if before is not None:
                return Baseline(run.lm, facts, measured, settings.chunk, before / name)
            return run.baseline(facts, measured, settings.chunk, run.folder.path / "before" / name)

        self._baseline = baseline(list(run.facts), run.settings, "edited")
        self._fixed = baseline(self.fixed, fixed_settings(run.settings), "fixed")
        self._position = SavedPosition(run, self.regime)
        self._checkpoints = Checkpoints(
            run, settings, self.regime, parts, self._baseline, self._fixed, lambda: self._stop()
        )

    def go(self) -> bool:
        """Runs to the end, or until it is stopped; True if it came to the end. The model is unedited afterwards."""
        if self._stop() or not self._fixed.complete(len(self.fixed), self._stop):
            return False
        position = self._position.load()
        self._position.forget_others(position.saved)
        self._forget_crashed(position)
        try:
            for edit in position.edits:
                edit.apply(self.run.lm)
            return self._go_on(position)
        finally:
            for edit in reversed(position.edits):
                if edit in self.run.lm.edits:
                    edit.revert(self.run.lm)

    @property
    def curve(self) -> list[dict[str, Any]]:
        """The points that are done: ``{"t", "metrics", "fixed", ...}``, in the order of T."""
        return self._checkpoints.curve

    @property
    def edits(self) -> Sequence[Edit]:
        """The edits in force where the sequence was saved last, in order."""
        return tuple(self._position.load().edits)

    @property
    def done(self) -> int:
        """How many facts were edited (or failed, or repeated another) where the sequence was saved last."""
        return self._position.done

    @property
    def retention(self) -> Evaluation:
        """How the facts whose requests are in force stand after the last edit."""
        return self._checkpoints.retention

    def summary(self) -> dict[str, Any]:
        """The run's summary: with every fact right after its edit, and the curve."""
        last = self._checkpoints.standing(len(self.run.facts))
        return self.run.summary("sequential") | {
            "regime": self.regime,
            "n_overwritten": len(last.overwritten),
            "n_repeated": len(last.repeated),
            "n_fixed_prompts": n_prompts(self.fixed),
            "peak_memory_mb": max(point["peak_memory_mb"] for point in self.curve),
            "retention": self.retention.metrics,
            "curve": self.curve,
        }

    def _go_on(self, position: Position) -> bool:
        facts, due = self.run.facts, self._checkpoints.due
        while True:
            if not self._checkpoints.scored(position.done) and not self._checkpoints.score(position):
                return False
            if position.done == len(facts):
                return True
            following = next(t for t in due if t > position.done)
            # Up to the next checkpoint in one go: lifting hundreds of edits takes a while.
            if self._stop() or not self._baseline.complete(following, self._stop):
                if not self._crashed(position):
                    self._position.save(position)
                return False
            if self.regime == "together":
                self._edit_together(position, following)
            else:
                self._edit_next(position)
            # After a crash nothing is saved any more: the sequence goes on from before it another time.
            if (position.done % self.settings.every == 0 or position.done in due) and not self._crashed(position):
                self._position.save(position)

    @property
    def crashes(self) -> list[Case]:
        """The cases at which the program failed, and which are tried again when the sequence goes on."""
        return [self.run.cases[fact.id] for fact in self.run.facts[self.done :] if self.run.cases[fact.id].crashed]

    def _crashed(self, position: Position) -> bool:
        cases = (self.run.cases.get(fact.id) for fact in self.run.facts[self.done : position.done])
        return position.made[1].startswith(CRASHED) or any(case is not None and case.crashed for case in cases)

    def _forget_crashed(self, position: Position) -> None:
        """What came after a crash is done again: later edits stand on what the model was then."""
        facts = list(self.run.facts)
        for place, fact in enumerate(facts[position.done :], position.done):
            if fact.id in self.run.cases and self.run.cases[fact.id].crashed:
                self.run.do_again(facts[place:])
                self._checkpoints.forget_after(place)
                return

    def _edit_next(self, position: Position) -> None:
        """Edits the next fact and measures it."""
        run, lm, place = self.run, self.run.lm, position.done
        fact = run.facts[place]
        before = self._baseline.of(place)
        position.done += 1
        repeated = self._history[place].get("repeats")
        if repeated is not None and not run.cases[run.facts[repeated].id].error:
            [after] = measure(lm, [fact], self._right_after, [before])
            run.finished(judged(fact, before, after, {"repeats": run.facts[repeated].id}))
            return
        held = list(position.edits)
        made = self._attempt(position, fact)
        [after] = measure(lm, [fact], self._right_after, [before])
        said = reports_of(made.edit).get(fact.id)
        error = made.error or str((said or {}).get("refused", ""))
        case = judged(fact, before, after, said, made.seconds, error)
        if made.edit is not None and case.error and not error:
            # The model gives no numbers any more: this edit is taken back.
            made.edit.revert(lm)
            position.edits[:] = held
            if self.regime == "extend" and held:
                held[0].apply(lm)
        run.finished(case)

    def _attempt(self, position: Position, fact: Fact) -> Attempt:
        """Asks for the next edit and puts it in its place."""
        lm = self.run.lm
        if self.regime == "stack":
            made = self.run.attempt([fact])
            if made.edit is not None:
                made.edit.apply(lm)
                position.edits.append(made.edit)
            return made
        editor: Any = self.run.editor
        previous = position.edits[0] if position.edits else None
        if previous is not None:
            previous.revert(lm)
        made = self.run.attempt([fact], lambda: editor.extend(lm, previous, [fact]))
        current = made.edit if made.edit is not None else previous
        if current is not None:
            current.apply(lm)
            position.edits[:] = [current]
        return made

    def _edit_together(self, position: Position, t: int) -> None:
        """Edits all facts so far that are in force, from the unedited model."""
        for edit in position.edits:
            edit.revert(self.run.lm)
        position.edits.clear()
        facts = [self.run.facts[number] for number in self._checkpoints.standing(t).in_force]
        made = self.run.attempt(facts)
        if made.edit is not None:
            made.edit.apply(self.run.lm)
            position.edits.append(made.edit)
        position.done, position.made = t, (made.seconds, made.error)

    def _regime(self) -> Regime:
        grows = hasattr(self.run.editor, "extend")
        if self.settings.regime == "extend" and not grows:
            raise ValueError(f"regime=extend: the editor {self.run.editor.name} has no `extend`; use stack or together")
        if self.settings.regime == "auto":
            return "extend" if grows else "stack"
        return self.settings.regime

    @property
    def _right_after(self) -> EvalSettings:
        if self.settings.after_each == "full":
            return self.run.settings
        return replace(self.run.settings, generate=False, perplexity_tokens=0)


def run_sequential(run: EditRun, settings: SequentialSettings, fixed: Fixed = ()) -> SequentialRun:
    """Runs the whole protocol; the unedited model's measurements are taken away in the end."""
    sequence = SequentialRun(run, settings, fixed)
    sequence.go()
    shutil.rmtree(run.folder.path / "before", ignore_errors=True)
    return sequence
