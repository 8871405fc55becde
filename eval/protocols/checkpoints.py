"""`Checkpoints`: how all edits so far stand after each of several T, and a fixed set of prompts that nobody edits.

Facts are scored whose request is still in force. The definitions are DESIGN's: reliability is the token accuracy and
the free-generation accuracy of the edited prompts over all edits so far, generalization the same on their paraphrases,
locality the preservation of answers (free) and of the most likely tokens (teacher-forced).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from corrigenda import Fact
from corrigenda.data.requests import Standing, standing
from corrigenda.files import write_json
from corrigenda.progress import track
from corrigenda.runs.environment import peak_memory_mb
from eval.evaluation import Case, Evaluation, judged
from eval.held_out import HeldOut, read_held_out
from eval.measure import measure
from eval.metrics import METRICS
from eval.metrics.metric import CurveGroup
from eval.protocols.baseline import Baseline
from eval.protocols.change import change_norm
from eval.protocols.position import Position
from eval.protocols.runs import EditRun, reports_of
from eval.protocols.settings import Regime, SequentialSettings
from eval.settings import EvalSettings

_FOLDER = "curve"
"""The folder of the points of the curve."""


def n_prompts(fixed: Sequence[Fact]) -> int:
    """How many prompts the fixed locality set holds."""
    return sum(len(fact.neighbourhood) + len(fact.locality) for fact in fixed)


class Checkpoints:
    """The points of the curve of a sequential run, as they lie in its folder; `score` adds one.

    Args:
        run: the run.
        settings: the protocol.
        regime: how the edits come together.
        parts: the fixed locality set, by the name of its part.
        edited: what the unedited model does with the run's facts.
        before_fixed: the same for the fixed locality set, measured with `fixed_settings`.
        stop: asked now and then whether to stop there, to go on another time.
    """

    def __init__(
        self,
        run: EditRun,
        settings: SequentialSettings,
        regime: Regime,
        parts: Mapping[str, Sequence[Fact]],
        edited: Baseline,
        before_fixed: Baseline,
        stop: Callable[[], bool],
    ) -> None:
        self.due = settings.due(len(run.facts))
        self.fixed = [fact for facts in parts.values() for fact in facts]
        self._parts = parts
        self._run = run
        self._settings = settings
        self._regime = regime
        self._edited = edited
        self._before_fixed = before_fixed
        self._stop = stop

    @property
    def curve(self) -> list[dict[str, Any]]:
        """The points that are done, in the order of T (see `_point`)."""
        paths = [self._path(t) for t in self.due]
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]

    @property
    def retention(self) -> Evaluation:
        """How the facts whose requests are in force stand after the last edit."""
        return self._evaluation(self._records("retention"), self.standing(len(self._run.facts)))

    def standing(self, t: int) -> Standing:
        """What became of the first T requests."""
        return standing(list(self._run.facts[:t]))

    def scored(self, t: int) -> bool:
        """Whether there is nothing to score at T, or it is done."""
        return t not in self.due or self._path(t).is_file()

    def forget_after(self, place: int) -> None:
        """Takes away the scores of all T above so many edits."""
        for t in self.due:
            if t > place:
                for path in (self._path(t), *(self._lines(name) for name in (self._name(t), self._fixed_name(t)))):
                    path.unlink(missing_ok=True)

    def score(self, position: Position) -> bool:
        """Scores all facts so far and the fixed set; False if it was stopped on the way."""
        run, t = self._run, position.done
        settings = run.settings
        if self._settings.generate_until is not None and t > self._settings.generate_until:
            settings = replace(settings, generate=False)
        held_out = read_held_out(run.lm, settings)
        together = self._regime == "together"
        said = reports_of(position.edits[0]) if together and position.edits else {}

        def error(fact: Fact) -> str:
            if together:
                return position.made[1] or str(said.get(fact.id, {}).get("refused", ""))
            return run.cases[fact.id].error

        # The fixed prompts are not generated from after an edit: whether the answer stays takes one forward.
        after_fixed = replace(fixed_settings(run.settings), generate=False)
        edited = list(run.facts[:t])
        if not self._measured(t, self._name(t), self._edited, edited, settings, held_out, error):
            return False
        fixed = (t, self._fixed_name(t), self._before_fixed, list(self.fixed), after_fixed, held_out)
        if not self._measured(*fixed, lambda fact: ""):
            return False
        cases = self._records(self._name(t))
        if together:
            for case in cases:
                run.finished(replace(case, edit=said.get(case.fact.id), seconds=position.made[0] / t))
        write_json(self._path(t), self._point(position, cases))
        return True

    def _measured(
        self,
        t: int,
        name: str,
        baseline: Baseline,
        wanted: Sequence[Fact],
        settings: EvalSettings,
        held_out: HeldOut | None,
        error: Callable[[Fact], str],
    ) -> bool:
        """Measures the wanted first facts of a baseline in the edited model, into the records of a name."""
        folder = self._run.folder
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        done = {record["id"] for record in folder.cases(name)}
        for number in track(baseline.chunks, f"Scoring {len(wanted)} facts ({name}) after {t} edits", bar=False):
            facts = wanted[number * self._settings.chunk : (number + 1) * self._settings.chunk]
            if all(fact.id in done for fact in facts):
                continue
            if self._stop():
                return False
            before = baseline.chunk(number)[: len(facts)]
            after = measure(self._run.lm, facts, settings, before, held_out)
            for fact, old, new in zip(facts, before, after, strict=True):
                if fact.id not in done:
                    folder.append(judged(fact, old, new, error=error(fact)).to_dict() | {"t": t}, name)
        return True

    def _point(self, position: Position, cases: Sequence[Case]) -> dict[str, Any]:
        """One point of the curve.

        ``metrics`` are those of the edits in force, in the form of `Evaluation.metrics`, ``right_after`` some of them
        as they were right after each fact's own edit, and ``fixed`` those of the fixed locality set, which has
        ``n_fixed_prompts`` prompts. Where it has several parts, ``fixed_parts`` has the same by part. ``norm`` is the
        Frobenius norm of the change of the weights, or of what lies beside them, and ``relative_norm`` that divided by
        the norm of the weights as they were.
        """
        t = position.done
        now = self.standing(t)
        fixed = iter(self._records(self._fixed_name(t)))
        parts = {name: Evaluation(tuple(islice(fixed, len(facts)))) for name, facts in self._parts.items()}
        whole = Evaluation(tuple(case for part in parts.values() for case in part.cases))
        apart = {name: _declared("fixed", part) for name, part in parts.items() if len(parts) > 1}
        edited = [self._run.cases[fact.id] for fact in self._run.facts[:t]]
        seconds = [case.seconds for case in edited if case.seconds is not None]
        if self._regime == "together":
            seconds = [position.made[0] / t]
        position.peak = max(position.peak, peak_memory_mb())
        return {
            "t": t,
            "metrics": self._evaluation(cases, now).metrics,
            "right_after": _declared("right_after", self._evaluation(edited, now)),
            "fixed": _declared("fixed", whole),
            **({"fixed_parts": apart} if apart else {}),
            "n_scored": len(now.in_force),
            "n_overwritten": len(now.overwritten),
            "n_repeated": len(now.repeated),
            "n_failed": sum(bool(cases[number].error) for number in now.in_force),
            "n_fixed_prompts": n_prompts(self.fixed),
            **change_norm(self._run.lm),
            "seconds_per_edit": sum(seconds) / len(seconds) if seconds else None,
            "peak_memory_mb": position.peak,
        }

    def _evaluation(self, cases: Sequence[Case], now: Standing) -> Evaluation:
        return Evaluation(tuple(cases[number] for number in now.in_force))

    def _records(self, name: str) -> list[Case]:
        return [Case.from_dict(record) for record in self._run.folder.cases(name)]

    def _name(self, t: int) -> str:
        """The records of the scores at T; those of the last are the run's retention."""
        return "retention" if t == len(self._run.facts) else f"{_FOLDER}/t-{t:04d}"

    def _fixed_name(self, t: int) -> str:
        return f"{_FOLDER}/fixed-{t:04d}"

    def _lines(self, name: str) -> Path:
        return self._run.folder.path / f"{name}.jsonl"

    def _path(self, t: int) -> Path:
        return self._run.folder.path / _FOLDER / f"t-{t:04d}.json"


def fixed_settings(settings: EvalSettings) -> EvalSettings:
    """What is measured of the fixed locality set before the edits."""
    return replace(settings, perplexity_windows=0, side_effects=False)


def _declared(group: CurveGroup, evaluation: Evaluation) -> dict[str, Any]:
    """The metrics that are declared for a part of a point of the curve."""
    wanted = {key for key, metric in METRICS.items() if any(one.group == group for one in metric.curve)}
    return {key: values for key, values in evaluation.metrics.items() if key in wanted}
