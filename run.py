"""The main job: takes a model, edits facts, scores the edits, prints and stores the result.

    python run.py [group=choice ...] [key=value ...]        (`python run.py --help` lists them)

The only place where locators, editors and the evaluation meet. `job=` says what is done.
"""

from __future__ import annotations

import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers.utils import logging as transformers_logging

from corrigenda import Fact, LanguageModel, load
from corrigenda.data import FactSet, read_facts
from corrigenda.data.parts import require_disjoint, take_part
from corrigenda.files import write_json
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.ids import code_version, files_named, run_id
from corrigenda.runs.records import records_in
from corrigenda.runs.store import Store, read_run, runs_table
from corrigenda.runs.trackers import Tracker, tracker
from editing import prepare
from eval import Case, EditRun, SequentialRun, SequentialSettings, run_batch, run_sequential, run_single
from eval.leaderboard import add_submission, leaderboard, write_leaderboard
from eval.lm_eval.harness import Harness
from eval.protocols.curves import curve_table, draw_curve
from locate import NeuronCounts, RefinedNeurons, Survey, Trace, UnknownFactError, average, suggest_layers, survey

MODES = ("single", "batch", "sequential")


@cache
def _run_folder(resume: str | None, store: str, job: str) -> str:
    """Where a run goes, the same for all of a process; what only reads the store leaves no folder there.

    A new folder is made here: of two runs that begin in the same second, one gets another name.
    """
    if job in STORE_JOBS:
        return f"{store}/.jobs"
    if resume:
        return str(resume)
    path = Path(datetime.now().strftime(f"{store}/%Y-%m-%d/%H-%M-%S"))
    for name in (path.name, *(f"{path.name}-{number}" for number in range(2, 1000))):
        with suppress(FileExistsError):
            path.with_name(name).mkdir(parents=True)
            return str(path.with_name(name))
    raise FileExistsError(f"{path} and a thousand more folders like it exist; begin again in a second")


OmegaConf.register_new_resolver("run_folder", _run_folder, replace=True)

# The processes that launchers start find this project's packages, also in a folder that has a "conf" of its own.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))

console = Console(stderr=True)
logger = logging.getLogger(__name__)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> float | None:
    """The program: the configuration of this run, and the job that it names; gives what `objective` asks for."""
    logging.captureWarnings(True)
    transformers_logging.disable_progress_bar()
    if config.job.name in STORE_JOBS:
        STORE_JOBS[config.job.name](config)
        return None
    if config.job.name not in JOBS:
        raise ValueError(f"job.name={config.job.name}: the jobs are {', '.join([*JOBS, *STORE_JOBS])}")
    folder = RunFolder(HydraConfig.get().runtime.output_dir)
    config = _configuration(config, folder)
    return JOBS[config.job.name](config, folder)


def edit(config: DictConfig, folder: RunFolder) -> float | None:
    """Edits facts and scores the edits, unless the store has that run already."""
    if config.mode not in MODES:
        raise ValueError(f"mode={config.mode}: the modes are {', '.join(MODES)}")
    facts = _facts(config.data)
    sequential = config.mode == "sequential"
    # Before the model is loaded: what is asked for in vain is said at once.
    protocol = instantiate(config.job.sequential, _convert_="all") if sequential else None
    fixed = _fixed_locality(config) if sequential else []
    lm = _model(config.model)
    identity = _identity(config, lm, facts, fixed, code_version())
    if folder.config is not None:  # resume=
        with folder.held():
            if folder.identity:  # first what nothing can make right: another model, other facts
                folder.identify(**{name: identity[name] for name in ("model_fingerprint", "data_fingerprint")})
            begun = folder.identity.get("code", identity["code"])
            if begun.split("+")[-1] != identity["code"]:
                logger.warning("the code has changed since %s was begun; its cases are of two versions", folder.path)
                identity = _identity(config, lm, facts, fixed, f"{begun}+{identity['code']}")
                folder.go_on_with(code=identity["code"], id=identity["id"])
            elif begun != identity["code"]:
                identity = _identity(config, lm, facts, fixed, begun)
            folder.identify(**identity)
            return _objective(config, _edit(config, folder, lm, facts, protocol, fixed))
    with Store(config.store).take(identity, lambda: _begin(config, folder), bool(config.force)) as taken:
        if isinstance(taken, RunFolder):
            if taken.path.resolve() != folder.path.resolve():
                logger.info("%s was left unfinished; going on there", taken.path)
            return _objective(config, _edit(config, taken, lm, facts, protocol, fixed))
    if taken.state == "running":
        logger.warning("%s: another process is at this run (%s); it is left to it", taken.path, taken.id)
        return None
    Console().print(f"finished already: {taken.path} (force=true runs it again)", highlight=False, soft_wrap=True)
    return _objective(config, taken.summary)


def _edit(
    config: DictConfig,
    folder: RunFolder,
    lm: LanguageModel,
    facts: FactSet,
    protocol: SequentialSettings | None,
    fixed: list[Fact],
) -> Mapping[str, Any]:
    """The run itself; gives its summary."""
    if config.editor.get("layer") == "auto":
        config.editor.layer = _located_layer(config, folder, lm, facts)
    editor, settings = instantiate(config.editor, _convert_="all"), instantiate(config.eval)
    harness = Harness.of(settings)
    if harness is not None and config.mode == "single":
        raise ValueError("eval.harness_tasks are run on one edited model: take mode=batch or mode=sequential")
    watcher = _tracker(config, folder)
    before = None if config.get("before") is None else Path(config.before)
    with _Progress(len(facts)) as progress:
        run = EditRun(lm, facts, editor, settings, folder, config.save_edits, lambda case: told(case), before)
        progress.done = len(run.cases)

        def told(case: Case) -> None:
            progress.advance(case)
            watcher.case(run.numbers[case.fact.id], case.to_dict())

        begin = time.perf_counter()
        prepare(editor, lm)
        prepared = time.perf_counter() - begin
        sequence = None
        if protocol is not None:
            sequence = run_sequential(run, protocol, fixed)
        else:
            {"single": run_single, "batch": run_batch}[config.mode](run)
    summary = (sequence.summary() if sequence is not None else run.summary(config.mode)) | {
        "seconds_to_prepare": prepared
    }
    if harness is not None:
        with ExitStack() as applied, console.status("Running the tasks of the evaluation harness"):
            for made in run.edits if sequence is None else sequence.edits:
                applied.enter_context(made.applied(lm))
            summary["harness"] = harness.before_and_after(lm)
    if sequence is not None:
        draw_curve(sequence.curve, folder.path / "curve.png", editor.name)
    _print(config, run, sequence, summary)
    folder.finish(summary)
    watcher.finish(summary)
    return summary


def _located_layer(config: DictConfig, folder: RunFolder, lm: LanguageModel, facts: FactSet) -> int:
    """The layer that tracing suggests for the run's facts; said, and kept for when the run goes on."""
    path = folder.path / "layer.json"
    if not path.is_file():
        locator = replace(instantiate(config.job.auto_layer.locator, _convert_="all"), site="ffn")
        traces: list[Trace] = []
        with console.status("Tracing facts to choose a layer"):
            for fact in facts:
                if len(traces) < config.job.auto_layer.facts:
                    with suppress(UnknownFactError):
                        traces.append(locator.find(lm, fact))
        if not traces:
            raise ValueError(f"editor.layer=auto: {lm.name} knows none of the {len(facts)} facts; name a layer")
        [layer] = suggest_layers(average(traces))
        why = "restoring FFN windows around it at the last subject token recovers the answer most"
        write_json(path, {"layer": layer, "why": why, "facts": [trace.fact.id for trace in traces]})
    chosen = json.loads(path.read_text(encoding="utf-8"))
    n = len(chosen["facts"])
    told = f"editor.layer=auto: layer {chosen['layer']}: {chosen['why']} ({n} facts traced)"
    console.print(told, highlight=False, soft_wrap=True)
    return int(chosen["layer"])


def _objective(config: DictConfig, summary: Mapping[str, Any]) -> float | None:
    """The figure that a sweeper optimises."""
    if config.objective is None:
        return None
    metrics = summary["metrics"]
    if config.objective not in metrics:
        raise ValueError(f"objective={config.objective}: this run has no such metric; it has {', '.join(metrics)}")
    return float(metrics[config.objective]["after"])


def _identity(config: DictConfig, lm: LanguageModel, facts: FactSet, fixed: list[Fact], code: str) -> dict[str, str]:
    """The run's id and what it is of, as it stands in the store."""
    plain: Any = OmegaConf.to_container(config, resolve=True)
    found = {"model_fingerprint": lm.fingerprint, "data_fingerprint": facts.fingerprint, "code": code}
    worked_on = FactSet(facts.name, tuple(fixed)).fingerprint + found["data_fingerprint"] + files_named(plain["editor"])
    tasks = plain["eval"].get("harness_folder")  # of the harness's own tasks, with whatever they include
    if tasks is not None:
        worked_on += files_named(sorted(map(str, Path(tasks).expanduser().rglob("*"))))
    return found | {"id": run_id(plain, worked_on, found["model_fingerprint"], code)}


def list_runs(config: DictConfig) -> None:
    """Lists the runs of the store."""
    printer = Console()
    # Wide tables are cut to a pipe's 80 columns otherwise.
    printer = Console(width=None if printer.is_terminal else 200)
    printer.print(runs_table(Store(config.store)))


def make_leaderboard(config: DictConfig) -> None:
    """Writes the leaderboard of the store; first takes in a submission, if there is one."""
    store, job = Store(config.store), config.job
    printer = Console()
    if config.add is not None:
        added = add_submission(Path(config.add), store)
        printer.print(f"added: {added}", highlight=False, soft_wrap=True)
    found = leaderboard(store.runs(), job.min_facts)
    for path in write_leaderboard(found, Path(job.folder), job.file, job.about):
        printer.print(str(path), highlight=False, soft_wrap=True)
    for run in found.left_out:
        logger.warning("left out: %s: %s", run.path, run.why)


def trace(config: DictConfig, folder: RunFolder) -> None:
    """Traces facts: results and pictures of each, and the average over them."""
    locator = instantiate(config.job.locator, _convert_="all")
    locators = {str(site): replace(locator, site=site) for site in config.job.sites}
    with folder.held():
        found = _survey(config, folder, locators, Trace.load)
        averages = {}
        for site, traces in found.results.items():
            if traces:
                averages[site] = average(traces)
                averages[site].save(folder.path / "averages" / site)
                averages[site].plot(folder.path / f"average-{site}{config.job.picture}")
        sites = {site: mean.summary() for site, mean in averages.items()}
        # Where every prompt ends with its subject there is no last subject token apart from the last one.
        found_there = "ffn" in averages and not bool(averages["ffn"].layer_scores().isnan().any())
        suggested = suggest_layers(averages["ffn"]) if found_there else None
        folder.finish(found.summary() | {"averages": sites, "suggested_layers": suggested})
    printer = Console()
    for mean in averages.values():
        printer.print(mean.table())
    if suggested:
        printer.print(f"layer {suggested[0]}: where restored FFN windows recover most at the last subject token")
    printer.print(f"results and pictures in {folder.path}", highlight=False, soft_wrap=True)


def neurons(config: DictConfig, folder: RunFolder) -> None:
    """Finds facts' knowledge neurons: results and pictures of each, and in which layers they lie."""
    locator = instantiate(config.job.locator, _convert_="all")
    with folder.held():
        found = _survey(config, folder, {"neurons": locator}, RefinedNeurons.load)
        results = found.results["neurons"]
        together = NeuronCounts.of(results) if results else None
        if together is not None:
            together.plot(folder.path / f"layers{config.job.picture}")
        folder.finish(found.summary() | ({} if together is None else together.summary()))
    printer = Console()
    if together is not None:
        printer.print(together.table())
    printer.print(f"results and pictures in {folder.path}", highlight=False, soft_wrap=True)


def _survey(config: DictConfig, folder: RunFolder, locators: Mapping[str, Any], load_result: Any) -> Survey[Any]:
    """Runs locators over the facts of a run, or goes on with it."""
    facts = _facts(config.data)
    lm = _model(config.model)
    if folder.config is None:
        _begin(config, folder)
    folder.identify(model_fingerprint=lm.fingerprint, data_fingerprint=facts.fingerprint)
    found = survey(lm, facts, locators, load_result, folder, config.job.facts, config.job.answer, config.job.picture)
    for what, ids in (("does not know", found.unknown), ("could not be asked about", found.failed)):
        if ids:
            Console().print(
                f"{lm.name} {what} {len(ids)} facts, passed over: {', '.join(ids)}", highlight=False, soft_wrap=True
            )
    return found


JOBS: dict[str, Callable[[DictConfig, RunFolder], float | None]] = {"edit": edit, "trace": trace, "neurons": neurons}
"""What `job=` can name."""

STORE_JOBS: dict[str, Callable[[DictConfig], None]] = {"runs": list_runs, "leaderboard": make_leaderboard}
"""The jobs that only read the runs that there are."""


def _model(model: DictConfig) -> LanguageModel:
    """The model of a run.

    Raises:
        ValueError: none is named; or as `load` says.
    """
    if model.name is None:
        raise ValueError(f"model={_choices()['model']} names no model: give model.name=, a hub id, a folder or a .gguf")
    with console.status(f"Loading {model.name}"):
        return load(**OmegaConf.to_container(model))  # type: ignore[arg-type]


def _facts(data: Mapping[str, Any], **changes: Any) -> FactSet:
    values = {"part": None, "disjoint_from": None, **data, **changes}
    if values["path"] is None:
        raise ValueError(
            f"data={_choices()['data']} comes from a file of yours: give data.path=, a .json or .jsonl file"
        )
    names = ("schema", "split", "config", "limit", "offset", "on_error")
    if values["part"] is None:
        facts = read_facts(values["path"], **{name: values[name] for name in names})
    else:
        whole = {name: values[name] for name in names} | {"limit": None, "offset": 0}
        facts = take_part(read_facts(values["path"], **whole), values["part"], values["limit"], values["offset"])
    if values["disjoint_from"] is not None:
        require_disjoint(_facts_used(values["disjoint_from"]), list(facts))
    return facts


def _facts_used(source: str) -> list[Fact]:
    """The facts of a finished run, given its folder, or of any source that can be read."""
    if not (Path(source) / "config.yaml").is_file():
        return list(read_facts(source))
    run = read_run(Path(source))
    if (run.state, run.job) != ("finished", "edit"):
        raise ValueError(
            f"data.disjoint_from={source}: this run is {run.state} (job {run.job}), and only a finished run of edits "
            "says which facts it used; name the data instead"
        )
    return [Fact.from_dict(record["fact"]) for record in records_in(Path(source))]


def _fixed_locality(config: DictConfig) -> list[Fact]:
    """The facts whose neighbourhood and locality prompts are scored at every T: those after the run's own."""
    asked = config.job.locality
    data: dict[str, Any] = dict(config.data)
    if asked.path is not None:
        data |= {"path": asked.path, "schema": asked.schema, "offset": asked.offset}
    elif data["limit"] is None:
        return []  # the run edits all there are
    else:
        data |= {"offset": data["offset"] + data["limit"]}
    if not asked.limit:
        return []
    try:
        return list(_facts(data, limit=asked.limit))
    except ValueError as error:
        if asked.path is not None:
            raise
        logger.warning("the fixed locality set is empty: %s", error)  # most likely no record follows the run's own
        return []


def _print(config: DictConfig, run: EditRun, sequence: SequentialRun | None, summary: Mapping[str, Any]) -> None:
    printer = Console()
    title = f"{run.editor.name} on {run.lm.name}, {run.facts.name}, {len(run.facts)} facts, {config.mode}"
    if sequence is None:
        printer.print(run.evaluation.table(title))
    else:
        printer.print(run.evaluation.table(f"{title}: each right after its edit"))
        printer.print(sequence.retention.table(f"{title}: all after the last edit"))
        # Wide tables are cut to a pipe's 80 columns otherwise.
        wide = Console(width=None if printer.is_terminal else 200)
        wide.print(curve_table(sequence.curve, f"{title}: all edits so far after T of them (%, nats)"))
        if summary["n_overwritten"] or summary["n_repeated"]:
            printer.print(
                f"{summary['n_overwritten']} facts were contradicted by later ones and {summary['n_repeated']} asked "
                "for again; after T edits the last request counts"
            )
    for case in run.evaluation.failures:
        printer.print(f"failed: {case.fact.id}: {case.error}", style="red")
    if run.facts.skipped:
        printer.print(f"{len(run.facts.skipped)} bad records were skipped; summary.json lists them")
    seconds = summary["seconds_per_edit"]
    took = "" if seconds is None else f"{seconds:.1f} s an edit; "
    printer.print(f"{took}results in {run.folder.path}")


class _Progress:
    """A bar on a terminal, and a line a fact everywhere."""

    def __init__(self, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("Editing", total=total)
        self._total = total
        self.done = 0

    def __enter__(self) -> _Progress:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def advance(self, case: Case) -> None:
        """Tells of a finished case."""
        self.done += 1
        self._bar.update(self._task, completed=self.done)
        record = case.after.prompts["prompt"][0]
        change = ""
        if "p_new" in record and case.before is not None:
            old = case.before.prompts["prompt"][0]
            change = f"P(new) {old['p_new']:.3f} -> {record['p_new']:.3f}"
        text = f"[{self.done}/{self._total}] {case.fact.statement} {case.fact.target_true} -> {case.fact.target_new}"
        took = "" if case.seconds is None else f"{case.seconds:.1f} s"
        self._bar.console.print(f"{text}  {case.error or change}  {took}", markup=False, highlight=False)


def _choices() -> dict[str, str]:
    """What was chosen of each group of configurations."""
    found = HydraConfig.get().runtime.choices.items()
    return {group: str(choice) for group, choice in found if "hydra" not in group}


def _begin(config: DictConfig, folder: RunFolder) -> RunFolder:
    if folder.config is not None:  # another process was given the same folder, and began first
        raise FileExistsError(f"{folder.path} holds another run by now; begin this one in another folder")
    folder.begin(OmegaConf.to_yaml({**config, "choices": _choices()}))
    return folder


def _configuration(config: DictConfig, folder: RunFolder) -> DictConfig:
    """The configuration of this run; for a resumed run, the one it was begun with.

    Raises:
        FileNotFoundError: there is no run to go on with.
        ValueError: the command line asks for something else than the run was begun with.
    """
    choices = _choices()
    if config.resume is None:
        if folder.config is not None:
            raise FileExistsError(
                f"{folder.path} holds a run; go on with it (resume={folder.path}) or use another folder"
            )
        OmegaConf.resolve(config)
        return config
    if folder.config is None:
        raise FileNotFoundError(f"resume={config.resume}: there is no run in this folder (no config.yaml)")
    stored = OmegaConf.create(folder.config)
    assert isinstance(stored, DictConfig)
    for override in HydraConfig.get().overrides.task:
        key = override.lstrip("+~").split("=", 1)[0]
        if key in ("resume", "store"):
            continue
        if key == "before":
            stored.before = config.before
            continue
        asked = choices[key] if key in choices else OmegaConf.select(config, key)
        begun = stored.choices.get(key) if key in choices else OmegaConf.select(stored, key)
        if asked != begun:
            raise ValueError(
                f"resume={config.resume}: the run was begun with {key}={begun}, not {asked}; "
                "leave the override out, or begin a new run"
            )
    return OmegaConf.masked_copy(stored, [str(key) for key in stored if key != "choices"])


def _tracker(config: DictConfig, folder: RunFolder) -> Tracker:
    plain: Any = OmegaConf.to_container(config)
    settings: Any = OmegaConf.to_container(config.logger)
    several = HydraConfig.get().mode == RunMode.MULTIRUN
    return tracker(settings, folder.path, plain, HydraConfig.get().sweep.dir if several else None)


if __name__ == "__main__":
    # Not the functions of __main__ but those of the module: other processes find them there by name (launchers).
    import run

    with warnings.catch_warnings():
        run.main()
