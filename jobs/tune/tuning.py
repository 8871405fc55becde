"""The trials of ``job=tune``: settings are tried until the budget is spent, and the best ones are written."""

import logging
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from corrigenda import EditRefusedError, LanguageModel
from corrigenda.data import FactSet, read_facts, write_facts
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.records import CRASHED
from corrigenda.system.files import write_json
from corrigenda.system.plain_data import read_json
from corrigenda.system.progress import counted
from editing import prepare
from editing.registry import space_of
from editing.spaces import Space
from eval import EditRun, EvalSettings, run_batch, run_single
from jobs.shared.auto_layer import traces_of
from jobs.shared.base import kept_before, override_names, say
from jobs.shared.errors import RunFailedError
from jobs.shared.job import stored_config
from jobs.shared.settings import instantiate, workers_of
from jobs.shared.tuned import tuned_file, tuned_name, write_tuned
from jobs.shared.words import setting
from jobs.tune.objective import Objective, objective_for
from jobs.tune.page import in_words, write_page
from jobs.tune.search import Axis, Proposal, axes_of, best_of, propose, settings_of, start_of
from jobs.tune.settings import TuneSettings
from locate import average, suggest_layers

logger = logging.getLogger(__name__)

FACTS = "facts.jsonl"
EMBEDDED = 30
"""So many of the project's facts are asked about, where the model knows none of the run's own."""


@dataclass
class Tuning:
    """The run itself; its folder is held by this process, and the model is unedited."""

    config: DictConfig
    asked: TuneSettings
    folder: RunFolder
    lm: LanguageModel
    facts: FactSet

    def run(self) -> float | None:
        """Tries settings until the budget is spent; writes what is the best, and what was tried; gives the best value.

        Raises:
            FileExistsError: where the tuned model is to be written another one lies.
            ValueError: no trial has figures.
        """
        fixed = self._fixed()  # first: who goes on with a run that was killed names no settings
        tuned_file(self._conf, self._name, self.config.model)
        write_facts(self.folder.path / FACTS, self.facts)
        say(f"tuning on {counted(len(self.facts), 'fact')}: {', '.join(fact.id for fact in self.facts)}")
        traced = self._traced()
        editor = instantiate(self.config.editor)
        space = space_of(editor)
        axes = axes_of(space, editor, self.lm, traced["layers"], fixed)
        trials = list(self.folder.cases())
        started = start_of(axes)
        for number, trial in enumerate(trials):
            if trial["error"].startswith(CRASHED):
                again = Proposal(trial["params"], trial["why"])
                trials[number] = self._trial(number, again, space, started, self._objective(trials))
        while (proposal := self._next(axes, trials, traced)) is not None:
            trials.append(self._trial(len(trials), proposal, space, started, self._objective(trials)))
        best = best_of(trials)
        if best is None:
            raise ValueError(
                f"{self.folder.path}: none of the {len(trials)} trials has figures; the first: {trials[0]['error']}"
            )
        return self._finish(axes, trials, best, traced)

    def _fixed(self) -> list[str]:
        """The editor's settings that the command line names: they are not tuned."""
        kept = self.folder.path / "fixed.json"
        if not kept.is_file():
            given = [name.removeprefix("editor.") for name in override_names() if name.startswith("editor.")]
            write_json(kept, {"fixed": given})
        fixed: list[str] = read_json(kept)["fixed"]
        return fixed

    def _traced(self) -> dict[str, Any]:
        """The layers where tracing finds facts that the model knows, and which facts these are.

        The run's own; where the model knows none of them (what is to be corrected is often unknown), those that come
        with the project: where a model keeps facts is asked, and not where it keeps these.
        """
        path = self.folder.path / "traced.json"
        if path.is_file():
            kept: dict[str, Any] = read_json(path)
            return kept
        begin = time.perf_counter()
        found: dict[str, Any] = {"layers": [], "facts": [], "why": "nothing was traced (job.traced=0)"}
        if self.asked.traced:
            locator = replace(instantiate(self.config.job.locator), site="ffn")
            found["why"] = (
                f"the model knows none of the {len(self.facts)} facts, nor of those that come with the project"
            )
            for facts in (self.facts, read_facts("embedded", limit=EMBEDDED)):
                try:
                    if traces := traces_of(self.lm, [*facts], locator, self.asked.traced):
                        layers = suggest_layers(average(traces), min(3, self.lm.n_layers))
                        found = {"layers": layers, "facts": [trace.fact.id for trace in traces], "why": ""}
                        break
                except ValueError as error:  # every prompt ends with its subject, for example
                    found["why"] = str(error)
        found["seconds"] = time.perf_counter() - begin
        write_json(path, found)
        named = ", ".join(map(str, found["layers"]))
        said = f"{len(found['facts'])} facts traced: layers {named}" if found["layers"] else found["why"]
        say(f"where to look for layers: {said}")
        return found

    def _next(self, axes: tuple[Axis, ...], trials: list[dict[str, Any]], traced: Mapping[str, Any]) -> Proposal | None:
        """What to try next; None where the budget is spent, or nothing else is left."""
        if len(trials) >= self.asked.trials:
            return None
        if trials and self.asked.minutes is not None:
            spent = traced["seconds"] + sum(trial["seconds"] for trial in trials)
            if spent + max(trial["seconds"] for trial in trials) > 60 * self.asked.minutes:
                return None
        return propose(axes, trials, traced["layers"], self.asked.seed)

    def _objective(self, trials: list[dict[str, Any]]) -> Objective | None:
        """What is tuned for: as the first trial with figures allows; None where none has any."""
        first: Mapping[str, Any] = next((trial["metrics"] for trial in trials if trial["metrics"]), {})
        if not first:
            return None
        asked = self.asked
        return objective_for(self.facts.schema, asked.metrics, asked.most_drift, asked.most_lost, first)

    def _trial(
        self,
        number: int,
        proposal: Proposal,
        space: Space,
        started: Mapping[str, float],
        objective: Objective | None,
    ) -> dict[str, Any]:
        """One trial: its record, which is on the disk when this returns."""
        settings = settings_of(space, proposal.params, started)
        say(f"trial {number} ({proposal.why}): {in_words(settings)}")
        folder = self._trial_folder(number, settings)
        earlier = _seconds(folder)
        begin = time.perf_counter()
        error, metrics = "", {}
        try:
            metrics = self._scored(self._editor(settings), folder, begin, earlier)
        except (ValueError, IndexError, EditRefusedError) as refusal:  # such settings cannot be
            error = f"refused: {refusal}"
        except Exception as crash:
            logger.exception("trial %d crashed", number)
            error = f"{CRASHED}{crash}"
        trial = {
            "id": f"trial-{number}",
            "number": number,
            "why": proposal.why,
            "params": dict(proposal.params),
            "settings": settings,
            "metrics": metrics,
            "value": None,
            "seconds": earlier + time.perf_counter() - begin,
            "error": error,
        }
        if objective is None:
            objective = self._objective([trial])
        if objective is not None:
            trial["value"] = objective.value({key: figures["after"] for key, figures in metrics.items()})
            trial |= {"objective": objective.in_words, "tuned_for": list(objective.metrics)}
        self.folder.append(trial)
        said = "no figures" if trial["value"] is None else f"{trial['value']:.3f}"
        say(f"trial {number}: {said} in {trial['seconds']:.0f} s{f'; {error}' if error else ''}")
        return trial

    def _trial_folder(self, number: int, settings: Mapping[str, Any]) -> RunFolder:
        """A trial's folder; what other settings left there is taken away (another version of Optuna draws others)."""
        path = self.folder.path / "trials" / f"{number:04d}"
        kept = path / "settings.json"
        if not kept.is_file() or read_json(kept) != settings:
            shutil.rmtree(path, ignore_errors=True)
            write_json(kept, settings)
        return RunFolder(path)

    def _editor(self, settings: Mapping[str, Any]) -> Any:
        config = self.config.editor.copy()
        for name, value in settings.items():
            OmegaConf.update(config, name, value)
        return instantiate(config)

    def _scored(self, editor: Any, folder: RunFolder, begin: float, earlier: float) -> dict[str, Any]:
        """The metrics of an editor on the facts.

        Raises:
            RunFailedError: the program failed at an edit; the trial is tried again when the run goes on.
        """
        settings: EvalSettings = instantiate(self.config.eval)

        def notify(case: Any) -> None:
            write_json(folder.path / "seconds.json", {"seconds": earlier + time.perf_counter() - begin})

        run = EditRun(self.lm, self.facts, editor, settings, folder, False, notify, self._before)
        prepare(editor, self.lm)
        run_batch(run) if self.config.mode == "batch" else run_single(run, workers_of(self.config))
        if crashes := run.evaluation.crashes:
            raise RunFailedError(f"{crashes[0].fact.id}: {crashes[0].error.removeprefix(CRASHED)}")
        return run.evaluation.metrics

    @cached_property
    def _before(self) -> Path:
        return kept_before(self.config) or self.folder.path / "before"

    @property
    def _conf(self) -> Path:
        return self.folder.path / "conf" if self.asked.conf is None else Path(self.asked.conf)

    @property
    def _name(self) -> str:
        return tuned_name(self.asked.model, self.lm.name)

    def _finish(
        self, axes: tuple[Axis, ...], trials: list[dict[str, Any]], best: Mapping[str, Any], traced: Mapping[str, Any]
    ) -> float:
        conf, name = self._conf, self._name
        editor = str(stored_config(self.folder.path, str(self.folder.path)).choices["editor"])
        told = (
            f"trial {best['number']} of {len(trials)}, mode={self.config.mode}, {len(self.facts)} facts of "
            f"{self.facts.name}; {_objective_of(trials)}: {best['value']:.3f}"
        )
        facts, own, fixed = self.folder.path / FACTS, self.config.editor, self._fixed()
        path = write_tuned(conf, name, self.config.model, own, editor, best["settings"], facts, told, fixed)
        found = {
            "editor": instantiate(self.config.editor).name,
            "model": self.lm.name,
            "model_fingerprint": self.lm.fingerprint,
            "data": self.facts.name,
            "mode": self.config.mode,
            "facts": [fact.id for fact in self.facts],
            "traced": dict(traced),
            "objective": _objective_of(trials),
            "axes": [vars(axis) for axis in axes],
            "trials": trials,
            "best": best["number"],
            "settings": best["settings"],
            "value": best["value"],
            "model_config": str(path),
            "later": f"--config-dir {shlex.quote(str(conf))} model={name} editor={editor}",
            "seconds": traced["seconds"] + sum(trial["seconds"] for trial in trials),
        }
        write_page(self.folder.path, found)
        self.folder.finish(found)
        say(f"the best is trial {best['number']} ({best['value']:.3f}): {in_words(best['settings'])}")
        say(f"what was tried: {self.folder.path / 'tuning.md'}")
        say(f"later runs take it: {found['later']} {setting('data.disjoint_from', self.folder.path)}")
        return float(best["value"])


def _objective_of(trials: Sequence[Mapping[str, Any]]) -> str:
    """What was tuned for, in words."""
    return next(str(trial["objective"]) for trial in trials if "objective" in trial)


def _seconds(folder: RunFolder) -> float:
    """What an earlier part of the run spent on a trial."""
    path = folder.path / "seconds.json"
    return float(read_json(path)["seconds"]) if path.is_file() else 0.0
