"""`Checkpoints`: how all edits so far stand after each of several T, and a fixed set of prompts that nobody edits.

Facts are scored whose request is still in force: reliability is the token accuracy and the free-generation accuracy of
the edited prompts over all edits so far, generalization the same on their paraphrases, locality the preservation of
answers (free) and of the most likely tokens (teacher-forced). After the last the model may be fine-tuned on unrelated
text, and the same facts scored once more (`eval.protocols.fine_tuning`).
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from corrigenda import Fact, LanguageModel
from corrigenda.data.requests import ActiveRequests, left_out, reports_together, select_active
from corrigenda.system.progress import counted, stage, track
from eval.evaluation import Case, Evaluation, judged
from eval.lm_eval.harness import Harness, Scores
from eval.measure import measure
from eval.measurement import HeldOut
from eval.metrics import METRICS
from eval.metrics.metric import CurveGroup
from eval.protocols.choice import chosen, first_and_latest, said_of
from eval.protocols.collapse_stop import check_collapse_stop, check_watched, find_collapse
from eval.protocols.fine_tuning import check_fine_tuning, finetuned
from eval.protocols.fixed_locality import Fixed, fixed_locality, parts_of
from eval.protocols.journal import Journal
from eval.protocols.pre_edit import PreEditMeasurement, ReducedEvaluation
from eval.protocols.runs import EditRun, reports_of
from eval.protocols.settings import Regime, SequentialSettings
from eval.records import SIDE_KINDS
from eval.scoring.held_out import read_held_out
from eval.settings import EvalSettings

logger = logging.getLogger(__name__)


class Checkpoints:
    """What a sequence has done, as its journal has it, and how its edits are scored; see `SequentialRun`."""

    def __init__(
        self, run: EditRun, settings: SequentialSettings, fixed: Fixed = (), stop: Callable[[], bool] = lambda: False
    ) -> None:
        if not len(run.facts):
            raise ValueError("a sequence of edits needs at least one fact")
        self._parts = {name: fixed_locality(facts, list(run.facts)) for name, facts in parts_of(fixed).items()}
        check_collapse_stop(run.lm, settings, run.settings)
        check_fine_tuning(run.lm, settings.fine_tuning)
        if moved := settings.moved(len(run.facts)):
            logger.warning(
                "the checkpoints %s lie inside a batch of %d facts; each is moved to its batch's end",
                ", ".join(map(str, moved)),
                settings.batch,
            )
        self.run = run
        self.settings = settings
        self.fixed = [fact for facts in self._parts.values() for fact in facts]
        self.regime = self._chosen_regime()
        self._due = settings.due(len(run.facts))
        self._stop = stop

        chunk, own = settings.chunk, run.folder.path / "before"
        self._pre_edit = run.pre_edit(list(run.facts), run.settings, chunk, own, self._never_scored())
        only = tuple(kind for kind in run.settings.only if kind not in SIDE_KINDS)
        self._of_fixed = replace(run.settings, perplexity_windows=0, side_effects=False, real_use=None, only=only)
        self._pre_edit_fixed = run.pre_edit(self.fixed, self._of_fixed, chunk, own)
        self._journal = Journal(run, self.regime, self._due, settings.keep_edits)

    @property
    def curve(self) -> list[dict[str, Any]]:
        """The points that are done, in the order of T (see `_point`)."""
        points = self._journal.said("point")
        return [points[t] for t in self._due if t in points]

    @property
    def retention(self) -> Evaluation:
        """How the facts whose requests are in force stand after the last edit that was made."""
        return self._evaluation(self._journal.cases("scored", self._end), self._active(self._end).active)

    @property
    def _end(self) -> int:
        """After how many edits the sequence ends: the last, or that at which it was stopped."""
        return len(self.run.facts) if self.stopped is None else int(self.stopped["t"])

    @property
    def stopped(self) -> dict[str, Any] | None:
        """Why the collapse stop ended the sequence, and where (`find_collapse`); None where it did not."""
        found = (find_collapse(point, self.settings.collapse_stop) for point in self.curve)
        return next((why for why in found if why is not None), None)

    @property
    def after_fine_tuning(self) -> Evaluation | None:
        """How the facts of the last point stand after fine-tuning; None where there was none, or nothing to score."""
        said = self._journal.said("fine_tuning").get(len(self.run.facts), {})
        if "cases" not in said:
            return None
        return self._evaluation(list(map(Case.from_dict, said["cases"])), self._active(said["t"]).active)

    @property
    def _fine_tuning_figures(self) -> dict[str, Any] | None:
        """The metrics before and after fine-tuning, with its losses and settings; None where there was none."""
        said = self._journal.said("fine_tuning").get(len(self.run.facts))
        return None if said is None else {name: value for name, value in said.items() if name != "cases"}

    def _active(self, t: int) -> ActiveRequests:
        """What became of the first T requests."""
        return select_active(list(self.run.facts[:t]))

    def _is_scored(self, t: int) -> bool:
        """Whether there is nothing to score at T, or it is done."""
        if t not in self._due:
            return True
        return t in self._journal.said("point") and len(self._journal.scores("scored", t)) == len(self._asked(t))

    def _score(self) -> bool:
        """Scores all facts so far and the fixed set; False if it was stopped on the way."""
        run, journal, t = self.run, self._journal, self._journal.done
        settings, held_out = self._settings_at(t), read_held_out(run.lm, run.settings)
        together = self.regime == "together"
        said = reports_of(journal.edits[0]) if together and journal.edits else {}

        def error(fact: Fact) -> str:
            if together:
                return journal.made[1] or str(said.get(fact.id, {}).get("refused", ""))
            return run.cases[fact.id].error

        # Of the fixed prompts only what is compared with before: nobody judges a free answer there.
        after_fixed = replace(self._of_fixed, generate=False)
        if not self._measured(t, "scored", self._pre_edit, self._asked(t), settings, held_out, error):
            return False
        fixed = (t, "fixed", self._pre_edit_fixed, range(len(self.fixed)), after_fixed, held_out)
        if not self._measured(*fixed, lambda fact: ""):
            return False
        cases = journal.cases("scored", t)
        if together:
            first = list(run.facts[:t])
            now = self._active(t)
            of_others = zip(first, reports_together(first, now), strict=True)
            said = {fact.id: {**said.get(fact.id, {}), **report} for fact, report in of_others}
            for case in cases:
                report = said[case.fact.id]
                seconds = None if left_out(report) else journal.made[0] / len(now.active)
                run.finished(replace(case, edit=report or None, seconds=seconds))
        journal.add("point", **self._point(cases) | self._harness_scores(t))
        return True

    def _score_fine_tuned(self) -> bool:
        """Fine-tunes the edited model, where that is asked for, and scores the facts of the last point once more.

        The figures go beside the curve. False if it was stopped on the way; it begins anew another time.
        """
        asked, t = self.settings.fine_tuning, self._journal.done
        if not asked.steps or t in self._journal.said("fine_tuning"):
            return True
        # Before the weights are trained: what "before" lacks is measured with the edits lifted.
        if self._stop() or not self._pre_edit.complete(t, self._stop):
            return False
        run, stood = self.run, self._journal.cases("scored", t)
        errors = {case.fact.id: case.error for case in stood}
        said: dict[str, Any] = {"steps": asked.steps, "lr": asked.lr, "weights": asked.weights}
        found: list[dict[str, Any]] = []
        try:
            with finetuned(run.lm, asked) as losses:
                settings, held_out = self._settings_at(t), read_held_out(run.lm, run.settings)
                again = [run.numbers[case.fact.id] for case in stood]
                scored = (t, "fine-tuned", self._pre_edit, again, settings, held_out)
                if not self._measured(*scored, lambda fact: errors[fact.id], found):
                    return False
        except ArithmeticError as problem:
            # Nothing to score; what a broken model cannot be trained for is said and not filled in.
            self._journal.add("fine_tuning", t, **said, error=str(problem))
            return True
        active = self._active(t).active
        metrics = self._evaluation(list(map(Case.from_dict, found)), active).metrics
        before = self._evaluation(stood, active).metrics
        figures = {"losses": [losses[0], losses[-1]], "before": before, "metrics": metrics}
        self._journal.add("fine_tuning", t, **said, **figures, cases=found)
        return True

    def _measured(
        self,
        t: int,
        kind: str,
        pre_edit: PreEditMeasurement,
        wanted: Sequence[int],
        settings: EvalSettings,
        held_out: HeldOut | None,
        error: Callable[[Fact], str],
        into: list[dict[str, Any]] | None = None,
    ) -> bool:
        """Measures facts, by their numbers, in the edited model, into the journal, or into a list."""
        # By the whole fact: two parts of the fixed set may ask other things about one fact.
        done = {Fact.from_dict(record["fact"]) for record in (self._journal.scores(kind, t) if into is None else into)}
        told = f"Scoring {counted(len(wanted), 'fact')} ({kind}) after {counted(t, 'edit')}"
        for number in track(pre_edit.chunks, told, bar=False):
            begin = number * self.settings.chunk
            places = [place - begin for place in wanted if begin <= place < begin + self.settings.chunk]
            facts = [pre_edit.facts(number)[place] for place in places]
            if done.issuperset(facts):
                continue
            if self._stop():
                return False
            measured = pre_edit.chunk(number)
            before = [measured[place] for place in places]
            after = measure(self.run.lm, facts, settings, before, held_out)
            for fact, old, new in zip(facts, before, after, strict=True):
                if fact not in done:
                    record = judged(fact, old, new, error=error(fact)).to_dict()
                    self._journal.add(kind, t, **record) if into is None else into.append(record)
        return True

    def _point(self, cases: Sequence[Case]) -> dict[str, Any]:
        """One point of the curve.

        ``metrics`` are those of the edits in force, in the form of `Evaluation.metrics`, ``right_after`` some of them
        as they were right after each fact's own edit, and ``fixed`` those of the fixed locality set, which has
        ``n_fixed_prompts`` prompts. Where it has several parts, ``fixed_parts`` has the same by part. ``norm`` is the
        Frobenius norm of the change of the weights, or of what lies beside them, and ``relative_norm`` that divided by
        the norm of the weights as they were. ``first`` and ``latest`` are some of the metrics of the first and of the
        latest `SequentialSettings.ends` requests, where there were more; ``scored`` says of which facts these and
        ``metrics`` are, where not of all in force; ``edits`` are the folders of those in force, where they are kept.
        """
        t = self._journal.done
        now = self._active(t)
        fixed = self._journal.cases("fixed", t)
        parts = {
            name: Evaluation(tuple(case for case in fixed if case.fact in facts)) for name, facts in self._parts.items()
        }
        whole = Evaluation(tuple(case for part in parts.values() for case in part.cases))
        apart = {name: _declared("fixed", part) for name, part in parts.items() if len(parts) > 1}
        # Of facts that are edited together those have a case that were scored.
        edited = [case for fact in self.run.facts[:t] if (case := self.run.cases.get(fact.id)) is not None]
        seconds = [case.seconds for case in edited if case.seconds is not None]
        if self.regime == "together":
            seconds = [self._journal.made[0] / len(now.active)]
        scored = self._chosen(t)
        ends = first_and_latest(scored, t, self.settings.ends)
        return {
            "t": t,
            "metrics": self._evaluation(cases, scored).metrics,
            "right_after": _declared("right_after", self._evaluation(edited, now.active)),
            **{part: _retained(self._evaluation(cases, numbers)) for part, numbers in ends.items()},
            "fixed": _declared("fixed", whole),
            **({"fixed_parts": apart} if apart else {}),
            "n_scored": len(scored),
            **said_of(len(scored), len(now.active), self.settings),
            "n_overwritten": len(now.overwritten),
            "n_repeated": len(now.repeated),
            "n_failed": sum(bool(case.error) for case in self._evaluation(cases, scored).cases),
            "n_fixed_prompts": sum(len(fact.neighbourhood) + len(fact.locality) for fact in self.fixed),
            **change_norm(self.run.lm),
            "seconds_per_edit": sum(seconds) / len(seconds) if seconds else None,
            "peak_memory_mb": self._journal.peak_memory_mb,
            **({"edits": list(self._journal.saved)} if self.settings.keep_edits else {}),
        }

    def _chosen_regime(self) -> Regime:
        grows = hasattr(self.run.editor, "extend")
        if self.settings.regime == "extend" and not grows:
            raise ValueError(f"regime=extend: the editor {self.run.editor.name} has no `extend`; use stack or together")
        if self.settings.regime == "auto":
            return "extend" if grows else "stack"
        return self.settings.regime

    def _never_scored(self) -> ReducedEvaluation | None:
        """The facts that no checkpoint scores, where right after an edit its own prompt alone is measured.

        (Where more is measured then, whether answers stay is told from the unedited model's: of all facts.)
        """
        facts = list(self.run.facts)
        if self.settings.scored is None or self.settings.after_each != "edited":
            return None
        due = self.settings.due(len(facts))
        scored = {number for t in due for number in chosen(facts, select_active(facts[:t]).active, self.settings)}
        return ReducedEvaluation(frozenset(range(len(facts))) - scored, self._after_each)

    @property
    def _after_each(self) -> EvalSettings:
        if self.settings.after_each == "full":
            return self.run.settings
        probabilities = replace(self.run.settings, generate=False, perplexity_windows=0)
        return (
            probabilities if self.settings.after_each == "probabilities" else replace(probabilities, only=("prompt",))
        )

    def _settings_at(self, t: int) -> EvalSettings:
        """What is measured of the edits at T."""
        if self.settings.generate_until is not None and t > self.settings.generate_until:
            return replace(self.run.settings, generate=False)
        return self.run.settings

    def _asked(self, t: int) -> Sequence[int]:
        """The numbers of the facts that are measured at T."""
        return range(t) if self.settings.scored is None else self._chosen(t)

    def _chosen(self, t: int) -> tuple[int, ...]:
        """The numbers of the facts that are scored at T."""
        return chosen(list(self.run.facts), self._active(t).active, self.settings)

    def _evaluation(self, cases: Sequence[Case], numbers: Sequence[int]) -> Evaluation:
        """Some of the facts; without those that were not scored."""
        by_id = {case.fact.id: case for case in cases}
        ids = (self.run.facts[number].id for number in numbers)
        return Evaluation(tuple(by_id[id_] for id_ in ids if id_ in by_id))

    @cached_property
    def _harness(self) -> Harness | None:
        return Harness.of(self.run.settings)

    def _harness_scores(self, t: int) -> dict[str, Any]:
        """The harness's tasks on the edited model, and on the unedited one; nothing where they are not run at T."""
        if not self.run.settings.harness_tasks or not self.settings.runs_harness(t, len(self.run.facts)):
            return {}
        assert self._harness is not None
        unedited = self._harness_unedited(t)
        with stage(f"Running the harness's tasks after {t} edits", bar=False):
            return {"harness": self._harness.before_and_after(self.run.lm, unedited)}

    def _harness_unedited(self, t: int) -> Scores:
        """The harness's tasks on the unedited model, which are run once, after T edits or before the first."""
        lm, said = self.run.lm, self._journal.said("unedited")
        if not said:
            assert self._harness is not None
            with stage("Running the harness's tasks on the unedited model", bar=False), lm.edits.suspended():
                self._journal.add("unedited", t, scores=self._harness.run(lm))
        scores: Scores = next(iter(said.values()))["scores"]
        return scores

    def _check_watched(self) -> None:
        """Raises SettingsError where a task of the harness has no accuracy, which the collapse stop watches."""
        if self.settings.collapse_stop.harness_drop is not None:
            check_watched(self._harness_unedited(self._journal.done))


def _declared(group: CurveGroup, evaluation: Evaluation) -> dict[str, Any]:
    """The metrics that are declared for a part of a point of the curve."""
    wanted = {key for key, metric in METRICS.items() if any(one.group == group for one in metric.curve)}
    return {key: values for key, values in evaluation.metrics.items() if key in wanted}


def _retained(evaluation: Evaluation) -> dict[str, Any]:
    """Of some of the edits the metrics of what an edit should bring about."""
    wanted = {key for key, metric in METRICS.items() if metric.edit_should == "change"}
    return {key: values for key, values in evaluation.metrics.items() if key in wanted}


def change_norm(lm: LanguageModel) -> dict[str, float]:
    """How far the applied edits are from the unedited model, where that can be said.

    ``norm``, the Frobenius norm of the change of all weights (of edits that lie beside the weights and have a norm, the
    square root of the sum of its squares), and ``relative_norm``, that divided by the norm of the matrices that were
    changed, as they were. Figures that are not defined or not finite are absent.
    """
    found: dict[str, float] = {}
    if lm.edits.untouched:
        pairs = [(lm.memory_at(place).values.double(), old.double()) for place, old in lm.edits.untouched.items()]
        found["norm"] = math.sqrt(sum(float((new - old).square().sum()) for new, old in pairs))
        found["relative_norm"] = found["norm"] / math.sqrt(sum(float(old.square().sum()) for _, old in pairs))
    else:
        beside: list[Any] = [edit for edit in lm.edits if not edit.in_weights and hasattr(edit, "norm")]
        if beside:
            found["norm"] = math.sqrt(sum(edit.norm() ** 2 for edit in beside))
    return {key: value for key, value in found.items() if math.isfinite(value)}
