"""``job=edit``: edits facts and scores the edits, unless the store has that run already."""

import dataclasses
import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import DictConfig, OmegaConf

from corrigenda import Fact, LanguageModel
from corrigenda.data import FactSet
from corrigenda.edits.edit import all_applied
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.ids import files_named, run_id
from corrigenda.runs.records import CRASHED, records_in
from corrigenda.runs.store import Store, StoredRun, read_run
from corrigenda.settings.checked import NotNegative, checked
from corrigenda.system.files import expanded
from corrigenda.system.progress import stage
from corrigenda.system.workers import Workers
from editing import Editor, prepare
from eval import Case, EditRun, SequentialSettings, run_batch, run_sequential, run_single
from eval.lm_eval.harness import Harness
from eval.protocols.curves import draw_curve
from jobs.edit.terminal import Progress, print_run
from jobs.shared import job
from jobs.shared.auto_layer import AutoLayerSettings, locate_layers
from jobs.shared.base import (
    begin,
    begin_tracker,
    code_of,
    code_since,
    interruptible,
    kept_before,
    load_model,
    override_names,
    read_beside,
    say,
)
from jobs.shared.data import LocalitySettings, fixed_locality, read_data
from jobs.shared.errors import RunFailedError
from jobs.shared.logs import log_to
from jobs.shared.outside import measuring
from jobs.shared.registry import register
from jobs.shared.settings import check, instantiate, instantiate_editor, workers_of
from jobs.shared.words import setting

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
@checked
class EditSettings:
    """``job=edit``.

    Attributes:
        most_failures: with a larger share of failed edits (refused, not finite) the program ends with an error.
    """

    group: ClassVar[str] = "job"

    most_failures: NotNegative = 0.5


@register(
    "edit",
    EditSettings,
    aim="edit facts and score the edits",
    parts={
        "auto_layer": AutoLayerSettings(),
        "sequential": SequentialSettings(),
        "locality": LocalitySettings(),
    },
    choices={"auto_layer.locator": "/locate: trace"},
)
class Job(job.Job):
    """Edits facts and scores the edits."""

    def run(self, config: DictConfig, folder: RunFolder) -> float | None:
        """Takes the run in hand, new or cut short; says so where another process is at it or it is finished."""
        stored = None if folder.config is None else read_run(folder.path)
        if stored is not None and stored.state == "finished":
            return _finished(config, stored)
        # Before the model is loaded: what is asked for in vain is said at once.
        _check(config)
        facts = read_data(config.data)
        sequential = config.mode == "sequential"
        protocol = instantiate(config.job.sequential) if sequential else None
        fixed = fixed_locality(config) if sequential else []
        lm = load_model(config)
        if stored is not None:  # resume=, or the same command for the same folder
            with folder.held():
                _identify_again(config, folder, lm, facts, fixed)
                return _objective(config, _edit(config, folder, lm, facts, protocol, fixed))
        identity = _identity(config, lm, facts, fixed, _code(config))
        with Store(config.store).take(identity, lambda: begin(config, folder), bool(config.force)) as taken:
            if isinstance(taken, RunFolder):
                if taken.path.resolve() != folder.path.resolve():
                    log_to(taken.path, folder.path)
                    logger.info("%s was left unfinished; going on there", taken.path)
                with interruptible(taken):
                    return _objective(config, _edit(config, taken, lm, facts, protocol, fixed))
        if taken.state == "running":
            logger.warning("%s: another process is at this run (%s); it is left to it", taken.path, taken.id)
            return None
        return _finished(config, taken)


def _finished(config: DictConfig, run: StoredRun) -> float | None:
    """What to say where there is nothing to do."""
    again = "force=true without resume= runs it again" if config.force else "force=true runs it again"
    say(f"finished already: {run.path} ({again})")
    return _objective(config, _enough_succeeded(config, run.path, run.summary))


def _enough_succeeded(config: DictConfig, folder: Path, summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """The summary of a run; a sweeper is given the figure of a bad one, too.

    Raises:
        RunFailedError: more of its edits failed than ``job.most_failures`` allows.
    """
    failed, total, most = summary.get("n_failed", 0), summary["n_facts"], config.job.get("most_failures", 1.0)
    if failed <= most * total:
        return summary
    first = next((case for case in records_in(folder) if case["error"]), None)
    why = "" if first is None else f"; the first: {first['id']}: {first['error']}"
    line = f"{folder}: {failed} of {total} edits failed, more than job.most_failures={most:g} allows{why}"
    if config.objective is None:
        raise RunFailedError(line)
    logger.warning(line)
    return summary


def _none_crashed(folder: Path, crashes: Sequence[Case], total: int) -> None:
    """Checks that the program did not fail at any edit. Raises RunFailedError: it did; the run is not finished then."""
    if crashes:
        first = crashes[0]
        raise RunFailedError(
            f"{folder}: {len(crashes)} of {total} edits crashed, and the run is not finished; the first: "
            f"{first.fact.id}: {first.error.removeprefix(CRASHED)}; run.log there says where; these are tried again "
            f"by {setting('resume', folder)}"
        )


def _check(config: DictConfig) -> None:
    """Makes what the configuration names, before the model is loaded: a setting that cannot be is said at once.

    Raises:
        SettingsError: there is such a setting.
        Exception: what else an editor raises that cannot be made.
    """
    check(EditSettings, config.job)
    if config.job.get("auto_layer") is not None:
        check(AutoLayerSettings, config.job.auto_layer)
        instantiate(config.job.auto_layer.locator)
    check(LocalitySettings, config.job.locality)
    settings = instantiate(config.eval)
    if settings.harness_tasks and config.mode == "single":
        raise ValueError("eval.harness_tasks are run on one edited model: take mode=batch or mode=sequential")
    Harness.of(settings)
    editor = config.editor.copy()
    OmegaConf.set_struct(editor, False)
    for field in ("layer", "layers"):
        if editor.get(field) == "auto":
            del editor[field]  # the default, until the layers are found
    instantiate_editor(editor)
    _warn_of_idle(config)


def _warn_of_idle(config: DictConfig) -> None:
    """Warns of settings on the command line that change nothing here."""
    idle: dict[str, str] = {}
    if config.mode != "sequential":
        idle |= dict.fromkeys(("job.sequential", "job.locality"), f"mode={config.mode}")
    if "auto" not in (config.editor.get("layer"), config.editor.get("layers")):
        idle["job.auto_layer"] = "an editor whose layers are given"
    for name in override_names():
        if why := idle.get(".".join(name.split(".")[:2])):
            logger.warning("%s has no effect with %s", name, why)


def _edit(
    config: DictConfig,
    folder: RunFolder,
    lm: LanguageModel,
    facts: FactSet,
    protocol: SequentialSettings | None,
    fixed: list[Fact],
) -> Mapping[str, Any]:
    """The run itself; gives its summary."""
    locate_layers(config, folder.path, lm, list(facts))
    editor, settings, workers = instantiate(config.editor), instantiate(config.eval), workers_of(config)
    if workers.number and config.mode != "single":
        editor = _spread(editor, workers)
    harness = Harness.of(settings)
    watcher = begin_tracker(config, folder)
    before = kept_before(config)
    with Progress(len(facts)) as progress:
        run = EditRun(lm, facts, editor, settings, folder, config.save_edits, lambda case: told(case), before)
        progress.done = run.n_done

        def told(case: Case) -> None:
            progress.advance(case)
            watcher.case(run.numbers[case.fact.id], case.to_dict())

        for case in run.cases.values():  # of a run that goes on: a tracker begins anew, and would show the rest alone
            if run.is_done(case.fact):
                watcher.case(run.numbers[case.fact.id], case.to_dict())
        start = time.perf_counter()
        prepare(editor, lm)
        prepared = time.perf_counter() - start
        sequence = None
        if protocol is not None:
            sequence = run_sequential(run, protocol, fixed)
        else:
            run_batch(run) if config.mode == "batch" else run_single(run, workers)
    summary = (sequence.summary() if sequence is not None else run.summary(config.mode)) | {
        "seconds_to_prepare": prepared,
        **({"workers": workers.number} if workers.number else {}),  # times are not those of one process
    }
    crashes = run.evaluation.crashes
    if harness is not None and sequence is None and not crashes:  # a sequence runs them at its checkpoints
        with stage("Running the tasks of the evaluation harness"), all_applied(run.edits, lm):
            summary["harness"] = harness.before_and_after(lm)
    if sequence is not None:
        draw_curve(sequence.curve, folder.path / "curve.png", editor.name)
    print_run(config, run, sequence, summary)
    _none_crashed(folder.path, crashes, len(facts))
    folder.finish(summary)
    watcher.finish(summary)
    return _enough_succeeded(config, folder.path, summary)


def _spread(editor: Editor, workers: Workers) -> Editor:
    """An editor that asks workers itself, where facts are edited together; one that cannot is said, and as it was."""
    if getattr(editor, "workers", None) == Workers():
        return dataclasses.replace(editor, workers=workers)  # type: ignore[type-var]
    if not hasattr(editor, "workers"):
        logger.warning(
            "workers.number=%d: %s edits many facts in one process; only mode=single spreads its facts",
            workers.number,
            editor.name,
        )
    return editor


def _objective(config: DictConfig, summary: Mapping[str, Any]) -> float | None:
    """The figure that a sweeper optimises."""
    if config.objective is None:
        return None
    metrics = summary["metrics"]
    if config.objective not in metrics:
        raise ValueError(f"objective={config.objective}: this run has no such metric; it has {', '.join(metrics)}")
    return float(metrics[config.objective]["after"])


def _code(config: DictConfig) -> str:
    """The version of the code that this run uses: this job, the classes that it names, and what else measures."""
    return code_of(config, "jobs.edit.job", *measuring(config.get("plugins")))


def _identity(config: DictConfig, lm: LanguageModel, facts: FactSet, fixed: list[Fact], code: str) -> dict[str, str]:
    """The run's id and what it is of, as it stands in the store."""
    plain: Any = OmegaConf.to_container(config, resolve=True)
    found = {"model_fingerprint": lm.fingerprint, "data_fingerprint": facts.fingerprint, "code": code}
    # What tables are told of that a configuration may leave open ("auto").
    found |= {"schema": facts.schema, "dtype": str(lm.dtype).removeprefix("torch.")}
    worked_on = FactSet(facts.name, tuple(fixed)).fingerprint + found["data_fingerprint"] + read_beside(plain, lm)
    tasks = plain["eval"].get("harness_folder")  # of the harness's own tasks, with whatever they include
    if tasks is not None:
        worked_on += files_named(sorted(map(str, expanded(tasks).rglob("*"))))
    # Beside what the id is of, which is another one where the code is.
    found["other_inputs"] = hashlib.sha256(worked_on.encode()).hexdigest()[:32]
    return found | {"id": run_id(plain, worked_on, found["model_fingerprint"], code)}


def _identify_again(
    config: DictConfig, folder: RunFolder, lm: LanguageModel, facts: FactSet, fixed: list[Fact]
) -> None:
    """Checks that a run that goes on works on what it was begun with; notes where the code is another.

    Raises:
        ValueError: it works on something else.
    """
    identity = _identity(config, lm, facts, fixed, _code(config))
    if begun_with := folder.identity:  # first what nothing can make right: another model, other facts, tokenizer, gate
        of = ("model_fingerprint", "data_fingerprint", "other_inputs")
        folder.identify(**{name: identity[name] for name in of if name in begun_with})
        # A run of an earlier version has not noted these.
        folder.go_on_with(**{name: identity[name] for name in ("schema", "dtype", "other_inputs")})
    code = code_since(folder, identity["code"], "cases")
    if code != identity["code"]:
        identity = _identity(config, lm, facts, fixed, code)
    if code != folder.identity.get("code", code):
        folder.go_on_with(code=code, id=identity["id"])
    folder.identify(**identity)
