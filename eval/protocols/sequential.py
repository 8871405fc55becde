"""The sequential protocol: edits 1 .. T on one model; `eval.protocols.checkpoints` scores how all of them stand."""

import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from corrigenda import Edit, Fact
from eval.evaluation import NOT_FINITE, judged
from eval.measure import measure, on_windows
from eval.measurement import Measurement
from eval.protocols.batches import asked_of
from eval.protocols.checkpoints import Checkpoints
from eval.protocols.fixed_locality import Fixed
from eval.protocols.runs import Attempt, EditRun, reports_of
from eval.protocols.settings import SequentialSettings
from eval.scoring.held_out import in_turn

logger = logging.getLogger(__name__)


class SequentialRun(Checkpoints):
    """A sequence of edits of one run; `go` makes and scores what is not done yet.

    Args:
        run: the model, facts, editor and folder.
        settings: the protocol.
        fixed: other facts, whose neighbourhood and locality prompts are the fixed locality set; those that name an
            edited subject are left out. By name where its parts are reported apart, too.
        stop: asked now and then whether to stop there, to go on another time.

    Raises:
        ValueError: there is no fact, the editor cannot do what the regime asks for, every prompt of the fixed locality
            set names an edited subject, the collapse stop watches what is not measured, or the model cannot be
            fine-tuned.
    """

    def go(self) -> bool:
        """Runs to the end, or until it is stopped; True if it came to the end. The model is unedited afterwards.

        The collapse stop ends it, too (`stopped`); it goes on from there only where other limits are set.
        """
        if self.run.crashed:
            self.run.read()
            self._journal.read()
        self._journal.load()
        if self.stopped is None:
            if self._stop() or not self._pre_edit_fixed.complete(len(self.fixed), self._stop):
                return False
            self._check_watched()
            try:
                for edit in self._journal.edits:
                    edit.apply(self.run.lm)
                if not self._go_on():
                    return False
            finally:
                for edit in reversed(self._journal.edits):
                    if edit in self.run.lm.edits:
                        edit.revert(self.run.lm)
        if not self.run.crashed:
            self.run.folder.write(self._journal.scores("scored", self._end), "retention")
        return True

    @property
    def edits(self) -> Sequence[Edit]:
        """The edits in force where the sequence was saved last, in order."""
        self._journal.load()
        return tuple(self._journal.edits)

    @property
    def done(self) -> int:
        """How many facts were edited (or failed, or repeated another) where the sequence was saved last."""
        return self._journal.saved_at

    def summary(self) -> dict[str, Any]:
        """The run's summary: with every fact right after its edit, and the curve.

        Of a sequence that the collapse stop ended ``n_facts`` is how many facts were edited; ``stopped`` says why.
        """
        curve, stopped = self.curve, self.stopped
        last = self._active(curve[-1]["t"])
        ends = {part: curve[-1][part] for part in ("first", "latest", "scored", "harness") if part in curve[-1]}
        fine_tuning = self._fine_tuning_figures
        return (
            self.run.summary("sequential")
            | {
                "regime": self.regime,
                "batch": self.settings.batch,
                "n_overwritten": len(last.overwritten),
                "n_repeated": len(last.repeated),
                "n_fixed_prompts": curve[-1]["n_fixed_prompts"],
                "peak_memory_mb": max(point["peak_memory_mb"] for point in curve),
                "retention": self.retention.metrics,
                "curve": curve,
            }
            | ends
            | ({} if fine_tuning is None else {"fine_tuning": fine_tuning})
            | ({} if stopped is None else {"stopped": stopped | {"n_facts_asked_for": len(self.run.facts)}})
        )

    def _go_on(self) -> bool:
        facts, due, journal = self.run.facts, self._due, self._journal
        while True:
            if not self._is_scored(journal.done) and not self._score():
                return False
            if journal.done in due and self.stopped is not None:
                logger.warning("the sequence is stopped: %s", self.stopped["why"])
                return True
            if journal.done == len(facts):
                return self.run.crashed or self._score_fine_tuned()
            following = next(t for t in due if t > journal.done)
            # Up to the next checkpoint in one go: lifting hundreds of edits takes a while.
            if self._stop() or not self._pre_edit.complete(following, self._stop):
                journal.save()
                return False
            begun = journal.done
            if self.regime == "together":
                self._edit_together(following)
            else:
                self._edit_next()
            every = self.settings.every
            if journal.done // every > begun // every or journal.done in due:
                journal.save()

    def _edit_next(self) -> None:
        """Edits the next batch of facts and measures them."""
        run, lm, journal, begin = self.run, self.run.lm, self._journal, self._journal.done
        end = min(begin + self.settings.batch, len(run.facts))
        journal.done = end
        asked = asked_of(list(run.facts), begin, end, run.cases)
        held = list(journal.edits)
        made = self._attempt(asked.facts) if asked.facts else Attempt(None, 0.0)
        reports = reports_of(made.edit)
        seconds = made.seconds / max(1, len(asked.facts))
        cases = []
        for fact, before, after in self._right_after(asked.facts):
            mine, relation = reports.get(fact.id), asked.relations.get(fact.id)
            said = mine if relation is None else (mine or {}) | relation
            why = made.error or str((mine or {}).get("refused", ""))
            cases.append(judged(fact, before, after, said, seconds, why))
        lost = [case.fact.id for case in cases if case.error.startswith(NOT_FINITE)]
        if made.edit is not None and lost:
            # The model gives no numbers any more: the edit of the whole batch is taken back.
            made.edit.revert(lm)
            journal.edits[:] = held
            if self.regime == "extend" and held:
                held[0].apply(lm)
            why = f"{NOT_FINITE}: with the edit of its batch the model gives no numbers at {lost[0]}; it was taken back"
            # What counts is the model as the next batch finds it: without the edit.
            cases = [
                judged(fact, before, after, case.edit, seconds, case.error or why)
                for case, (fact, before, after) in zip(cases, self._right_after(asked.facts), strict=True)
            ]
        left = [fact for fact in run.facts[begin:end] if fact.id in asked.left_to]
        cases += [judged(*measured, asked.left_to[measured[0].id]) for measured in self._right_after(left)]
        for case in sorted(cases, key=lambda case: run.numbers[case.fact.id]):
            run.finished(case)

    def _right_after(self, facts: Sequence[Fact]) -> Iterator[tuple[Fact, Measurement, Measurement]]:
        """Facts of the batch that was edited just now, with what the unedited model did and what this one does."""
        settings, size = self._after_each, self.settings.chunk
        for begin in range(0, len(facts), size):
            part = facts[begin : begin + size]
            numbers = [self.run.numbers[fact.id] for fact in part]
            before = [on_windows(self._pre_edit.of(number), in_turn(number, settings)) for number in numbers]
            if self.settings.after_each == "probabilities":
                before = [replace(one, continuations={}) for one in before]  # nothing is gone on with
            yield from zip(part, before, measure(self.run.lm, part, settings, before), strict=True)

    def _attempt(self, facts: Sequence[Fact]) -> Attempt:
        """Asks for the next edit and puts it in its place."""
        lm, journal = self.run.lm, self._journal
        if self.regime == "stack":
            made = self.run.attempt(facts)
            if made.edit is not None:
                made.edit.apply(lm)
                journal.edits.append(made.edit)
            return made
        editor: Any = self.run.editor
        previous = journal.edits[0] if journal.edits else None
        if previous is not None:
            previous.revert(lm)
        made = self.run.attempt(facts, lambda wanted: editor.extend(lm, previous, wanted))
        current = made.edit if made.edit is not None else previous
        if current is not None:
            current.apply(lm)
            journal.edits[:] = [current]
        return made

    def _edit_together(self, t: int) -> None:
        """Edits all facts so far that are in force, from the unedited model."""
        journal = self._journal
        for edit in journal.edits:
            edit.revert(self.run.lm)
        journal.edits.clear()
        facts = [self.run.facts[number] for number in self._active(t).active]
        made = self.run.attempt(facts)
        if made.edit is not None:
            made.edit.apply(self.run.lm)
            journal.edits.append(made.edit)
        journal.done, journal.made = t, (made.seconds, made.error)


def run_sequential(run: EditRun, settings: SequentialSettings, fixed: Fixed = ()) -> SequentialRun:
    """Runs the whole protocol; the unedited model's measurements are taken away in the end."""
    sequence = SequentialRun(run, settings, fixed)
    sequence.go()
    shutil.rmtree(run.folder.path / "before", ignore_errors=True)
    return sequence
