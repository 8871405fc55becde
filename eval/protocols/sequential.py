"""The sequential protocol: edits 1 .. T on one model, and how all of them stand after each of several T.

After T edits, all facts edited so far are scored again, whose request is still in force (`corrigenda.data.requests`),
and a fixed set of prompts that nobody edits. The definitions are DESIGN's: reliability is the token accuracy and the
free-generation accuracy of the edited prompts over all edits so far, generalization the same on their paraphrases,
locality the preservation of answers (free) and of the most likely tokens (teacher-forced).
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.data.requests import Standing, history, standing
from corrigenda.files import write_json
from corrigenda.runs.environment import peak_memory_mb
from eval.evaluation import Case, Evaluation, judged
from eval.measure import EvalSettings, held_out_log_perplexity, measure
from eval.protocols.baseline import Baseline
from eval.protocols.runs import Attempt, EditRun, reports_of
from eval.protocols.standing import untouched

Regime = Literal["auto", "stack", "extend", "together"]

FIXED = (
    "preservation",
    "locality_token_agreement",
    "neighbourhood_success",
    "neighbourhood_magnitude",
    "neighbourhood_kl",
)
"""The metrics of the fixed locality set."""

RIGHT_AFTER = ("efficacy_success", "token_accuracy", "free_generation_strict", "paraphrase_token_accuracy")
"""The metrics that a point of the curve has once more as they were right after each fact's own edit."""

_TOLD = "curve"
"""The folder of the points of the curve."""


@dataclass(frozen=True)
class SequentialSettings:
    """How a sequence of edits is made and scored.

    Attributes:
        checkpoints: after how many edits all of them are scored: those below the number of facts, and that number.
        every: after how many edits what was done is written down, so that a killed run goes on from there.
        regime: how the edits come together. "stack": each fact is edited on the model as the earlier edits left it, and
            its edit put on top; "extend": the editor's own `extend` goes on from its edit of the earlier facts (side
            memories); "together": at each checkpoint all facts so far are edited at once, from the unedited model;
            "auto": "extend" where the editor has it, else "stack".
        after_each: what is measured of a fact right after its edit: all ("full"), or only what follows from
            probabilities ("probabilities"). It adds up: this is done after every edit.
        generate_until: beyond so many edits the checkpoints measure no free generation of the edits; None: all do.
        chunk: facts measured together.
    """

    checkpoints: tuple[int, ...] = (1, 10, 30, 100, 300, 1000)
    every: int = 10
    regime: Regime = "auto"
    after_each: Literal["full", "probabilities"] = "full"
    generate_until: int | None = None
    chunk: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "checkpoints", tuple(sorted({int(t) for t in self.checkpoints})))
        if self.every < 1 or self.chunk < 1 or any(t < 1 for t in self.checkpoints):
            raise ValueError(f"every, chunk and all checkpoints must be at least 1: {self}")
        if self.regime not in ("auto", "stack", "extend", "together"):
            raise ValueError(f"regime={self.regime!r}: the regimes are auto, stack, extend and together")
        if self.after_each not in ("full", "probabilities"):
            raise ValueError(f"after_each={self.after_each!r}: it is 'full' or 'probabilities'")

    def due(self, n_facts: int) -> list[int]:
        """The T at which `n_facts` facts are scored."""
        return [t for t in self.checkpoints if t < n_facts] + [n_facts]


@dataclass
class _Position:
    """Where a sequence stands.

    Attributes:
        done: facts that were edited (or failed, or repeated another).
        edits: the edits that hold, in order; for "extend" and "together" at most one.
        saved: the folders of those that are saved, relative to the run's.
        peak: the most memory held so far, by the processes before this one too, in MB.
        made: for "together" the seconds the edit took, and why there is none.
    """

    done: int
    edits: list[Edit]
    saved: list[str]
    peak: float
    made: tuple[float, str] = (0.0, "")


class SequentialRun:
    """A sequence of edits of one run; `go` makes and scores what is not done yet.

    Args:
        run: the model, facts, editor and folder.
        settings: the protocol.
        fixed: other facts, whose neighbourhood and locality prompts are the fixed locality set.
        stop: asked now and then whether to stop there, to go on another time.
        before: the folder where the unedited model's measurements are kept, for runs of the same model, facts and
            evaluation alone. By default one in the run's folder, or the run's own `before`, where any runs meet.

    Raises:
        ValueError: there is no fact, or the editor cannot do what the regime asks for.
    """

    def __init__(
        self,
        run: EditRun,
        settings: SequentialSettings,
        fixed: Sequence[Fact] = (),
        stop: Callable[[], bool] = lambda: False,
        before: Path | None = None,
    ) -> None:
        if not len(run.facts):
            raise ValueError("a sequence of edits needs at least one fact")
        self.run = run
        self.settings = settings
        self.due = settings.due(len(run.facts))
        self.fixed = untouched(fixed, list(run.facts))
        self._history = history(list(run.facts))
        self.regime = self._regime()
        self._stop = stop

        def baseline(facts: Sequence[Fact], measured: EvalSettings, name: str) -> Baseline:
            if before is not None:
                return Baseline(run.lm, facts, measured, settings.chunk, before / name)
            return run.baseline(facts, measured, settings.chunk, run.folder.path / "before" / name)

        self._baseline = baseline(list(run.facts), run.settings, "edited")
        # The fixed prompts are not generated from after an edit: whether the answer stays takes one forward.
        self._fixed = baseline(self.fixed, self._fixed_settings, "fixed")

    def go(self) -> bool:
        """Runs to the end, or until it is stopped; True if it came to the end. The model is unedited afterwards."""
        if self._stop() or not self._fixed.complete(len(self.fixed), self._stop):
            return False
        position = self._load()
        self._forget_others(position.saved)
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
        """The points that are done: ``{"t", "metrics", "fixed", ...}``, in the order of T (see `_point`)."""
        paths = [self._point_path(t) for t in self.due]
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]

    @property
    def edits(self) -> Sequence[Edit]:
        """The edits in force where the sequence was saved last, in order."""
        return tuple(self._load().edits)

    @property
    def done(self) -> int:
        """How many facts were edited (or failed, or repeated another) where the sequence was saved last."""
        return int(self._state["done"]) if self._state_path.is_file() else 0

    @property
    def retention(self) -> Evaluation:
        """How the facts whose requests are in force stand after the last edit."""
        return self._evaluation(self._records("retention"), self._standing(len(self.run.facts)))

    def summary(self) -> dict[str, Any]:
        """The run's summary: with every fact right after its edit, and the curve."""
        last = self._standing(len(self.run.facts))
        return self.run.summary("sequential") | {
            "regime": self.regime,
            "n_overwritten": len(last.overwritten),
            "n_repeated": len(last.repeated),
            "peak_memory_mb": max(point["peak_memory_mb"] for point in self.curve),
            "retention": self.retention.metrics,
            "curve": self.curve,
        }

    # -- the sequence

    def _go_on(self, position: _Position) -> bool:
        facts = self.run.facts
        while True:
            scored = position.done not in self.due or self._point_path(position.done).is_file()
            if not scored and not self._score(position):
                return False
            if position.done == len(facts):
                return True
            due = next(t for t in self.due if t > position.done)
            # Up to the next checkpoint in one go: lifting hundreds of edits takes a while.
            if self._stop() or not self._baseline.complete(due, self._stop):
                self._save(position)
                return False
            if self.regime == "together":
                self._edit_together(position, due)
            else:
                self._edit_next(position)
            if position.done % self.settings.every == 0 or position.done in self.due:
                self._save(position)

    def _edit_next(self, position: _Position) -> None:
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

    def _attempt(self, position: _Position, fact: Fact) -> Attempt:
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

    def _edit_together(self, position: _Position, t: int) -> None:
        """Edits all facts so far that are in force, from the unedited model."""
        for edit in position.edits:
            edit.revert(self.run.lm)
        position.edits.clear()
        facts = [self.run.facts[number] for number in self._standing(t).in_force]
        made = self.run.attempt(facts)
        if made.edit is not None:
            made.edit.apply(self.run.lm)
            position.edits.append(made.edit)
        position.done, position.made = t, (made.seconds, made.error)

    # -- scoring all edits so far

    def _score(self, position: _Position) -> bool:
        """Scores all facts so far and the fixed set; False if it was stopped on the way."""
        run, t = self.run, position.done
        settings = run.settings
        if self.settings.generate_until is not None and t > self.settings.generate_until:
            settings = replace(settings, generate=False)
        level = held_out_log_perplexity(run.lm, settings) if settings.perplexity_tokens else None
        said = reports_of(position.edits[0]) if self.regime == "together" and position.edits else {}

        def error(fact: Fact) -> str:
            if self.regime == "together":
                return position.made[1] or str(said.get(fact.id, {}).get("refused", ""))
            return run.cases[fact.id].error

        fixed, fixed_settings = [*self.fixed], replace(self._fixed_settings, generate=False)
        edited = list(run.facts[:t])
        if not self._scored(t, self._name(t), self._baseline, edited, settings, level, error):
            return False
        if not self._scored(t, self._fixed_name(t), self._fixed, fixed, fixed_settings, level, lambda fact: ""):
            return False
        cases = self._records(self._name(t))
        if self.regime == "together":
            for case in cases[len(run.cases) :]:
                run.finished(replace(case, edit=said.get(case.fact.id), seconds=position.made[0] / t))
        write_json(self._point_path(t), self._point(position, cases))
        return True

    def _scored(
        self,
        t: int,
        name: str,
        baseline: Baseline,
        wanted: Sequence[Fact],
        settings: EvalSettings,
        level: float | None,
        error: Callable[[Fact], str],
    ) -> bool:
        """Measures the wanted first facts of a baseline in the edited model, into the records of a name."""
        folder = self.run.folder
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        done = {record["id"] for record in folder.cases(name)}
        for number in baseline.chunks:
            facts = wanted[number * self.settings.chunk : (number + 1) * self.settings.chunk]
            if all(fact.id in done for fact in facts):
                continue
            if self._stop():
                return False
            before = baseline.chunk(number)[: len(facts)]
            after = measure(self.run.lm, facts, settings, before, level)
            for fact, old, new in zip(facts, before, after, strict=True):
                if fact.id not in done:
                    folder.append(judged(fact, old, new, error=error(fact)).to_dict() | {"t": t}, name)
        return True

    def _point(self, position: _Position, cases: Sequence[Case]) -> dict[str, Any]:
        """One point of the curve.

        ``metrics`` are those of the edits in force, in the form of `Evaluation.metrics`, ``right_after`` some of them
        as they were right after each fact's own edit, and ``fixed`` those of the fixed locality set. ``norm`` is the
        Frobenius norm of the change of the weights, or of what lies beside them, and ``relative_norm`` that divided by
        the norm of the weights as they were.
        """
        t = position.done
        now = self._standing(t)
        fixed = Evaluation(tuple(self._records(self._fixed_name(t)))).metrics
        edited = [self.run.cases[fact.id] for fact in self.run.facts[:t]]
        right_after = self._evaluation(edited, now).metrics
        seconds = [case.seconds for case in edited if case.seconds is not None]
        if self.regime == "together":
            seconds = [position.made[0] / t]
        position.peak = max(position.peak, peak_memory_mb())
        return {
            "t": t,
            "metrics": self._evaluation(cases, now).metrics,
            "right_after": {key: right_after[key] for key in RIGHT_AFTER if key in right_after},
            "fixed": {key: fixed[key] for key in FIXED if key in fixed},
            "n_scored": len(now.in_force),
            "n_overwritten": len(now.overwritten),
            "n_repeated": len(now.repeated),
            "n_failed": sum(bool(cases[number].error) for number in now.in_force),
            **change_norm(self.run.lm),
            "seconds_per_edit": sum(seconds) / len(seconds) if seconds else None,
            "peak_memory_mb": position.peak,
        }

    def _evaluation(self, cases: Sequence[Case], now: Standing) -> Evaluation:
        return Evaluation(tuple(cases[number] for number in now.in_force))

    def _records(self, name: str) -> list[Case]:
        return [Case.from_dict(record) for record in self.run.folder.cases(name)]

    def _standing(self, t: int) -> Standing:
        return standing(list(self.run.facts[:t]))

    def _name(self, t: int) -> str:
        """The records of the scores at T; those of the last are the run's retention."""
        return "retention" if t == len(self.run.facts) else f"{_TOLD}/t-{t:04d}"

    def _fixed_name(self, t: int) -> str:
        return f"{_TOLD}/fixed-{t:04d}"

    def _point_path(self, t: int) -> Path:
        return self.run.folder.path / _TOLD / f"t-{t:04d}.json"

    # -- where it stands, on disk

    @cached_property
    def _state_path(self) -> Path:
        return self.run.folder.path / "position.json"

    @property
    def _state(self) -> dict[str, Any]:
        """The position as it was saved last; the edits by the names of their folders."""
        return dict(json.loads(self._state_path.read_text(encoding="utf-8")))

    def _save(self, position: _Position) -> None:
        """Saves the edits that are not saved yet, and then, in one stroke, the position."""
        run = self.run
        if self._state_path.is_file() and self.done == position.done:
            return
        position.peak = max(position.peak, peak_memory_mb())
        if self.regime == "stack":
            for edit in position.edits[len(position.saved) :]:
                fact = edit.origin.facts[-1]
                path = run.folder.edit_path(run.numbers[fact.id], fact.id)
                edit.save(path)
                position.saved.append(path.relative_to(run.folder.path).as_posix())
        else:
            position.saved = []
            for edit in position.edits:
                path = run.folder.edit_path(position.done, "all")
                edit.save(path)
                position.saved.append(path.relative_to(run.folder.path).as_posix())
        state = {"done": position.done, "edits": position.saved, "peak_memory_mb": position.peak, "made": position.made}
        write_json(self._state_path, state)
        self._forget_others(position.saved)

    def _forget_others(self, saved: Collection[str]) -> None:
        """Removes edits that others took the place of; one is left where a run was killed just before this."""
        if self.regime == "stack":
            return
        for path in (self.run.folder.path / "edits").glob("*"):
            if path.relative_to(self.run.folder.path).as_posix() not in saved:
                shutil.rmtree(path, ignore_errors=True)

    def _load(self) -> _Position:
        if not self._state_path.is_file():
            return _Position(0, [], [], 0.0)
        state = self._state
        edits = [Edit.load(self.run.folder.path / name) for name in state["edits"]]
        seconds, error = state["made"]
        return _Position(state["done"], edits, list(state["edits"]), state["peak_memory_mb"], (seconds, error))

    # -- settings

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

    @property
    def _fixed_settings(self) -> EvalSettings:
        return replace(self.run.settings, perplexity_tokens=0)


def change_norm(lm: LanguageModel) -> dict[str, float]:
    """How far the applied edits are from the unedited model, where that can be said.

    Returns:
        ``norm``, the Frobenius norm of the change of all weights (of edits that lie beside the weights and have a norm,
        the square root of the sum of its squares), and ``relative_norm``, that divided by the norm of the matrices that
        were changed, as they were. Figures that are not defined or not finite are absent.
    """
    found: dict[str, float] = {}
    if lm.edits.untouched:
        pairs = [(lm.memory(layer).values.double(), old.double()) for layer, old in lm.edits.untouched.items()]
        found["norm"] = math.sqrt(sum(float((new - old).square().sum()) for new, old in pairs))
        found["relative_norm"] = found["norm"] / math.sqrt(sum(float(old.square().sum()) for _, old in pairs))
    else:
        beside: list[Any] = [edit for edit in lm.edits if not edit.in_weights and hasattr(edit, "norm")]
        if beside:
            found["norm"] = math.sqrt(sum(edit.norm() ** 2 for edit in beside))
    return {key: value for key, value in found.items() if math.isfinite(value)}


def run_sequential(run: EditRun, settings: SequentialSettings, fixed: Sequence[Fact] = ()) -> SequentialRun:
    """Runs the whole protocol; the unedited model's measurements are taken away in the end."""
    sequence = SequentialRun(run, settings, fixed)
    sequence.go()
    shutil.rmtree(run.folder.path / "before", ignore_errors=True)
    return sequence
