"""``job=tune``: finds an editor's layers, and the two or three settings that matter, for a model nobody tuned.

Each trial edits and scores the same facts with other settings (`jobs.tune.search` says which). The best ones are
written as a model's configuration that later runs name, ``model=NAME-tuned`` (`jobs.shared.tuned`), with a page of all
that was tried. In the run's folder:

    cases.jsonl          a line a trial, on the disk when it is finished: a killed job goes on after the last of them
    trials/0003/         the cases of a trial, in which it goes on when it was killed
    facts.jsonl          the facts that were tuned on: ``data.disjoint_from=FOLDER`` keeps later runs away from them
    traced.json          the layers that tracing found
    conf/model/NAME.yaml the tuned model
    tuning.md, .png, .json  the page, its picture and its data
"""

import logging
from typing import Any

from omegaconf import DictConfig, OmegaConf

from corrigenda import LanguageModel
from corrigenda.data import FactSet
from corrigenda.errors import SettingsError
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.ids import run_id
from corrigenda.runs.store import Store
from editing.registry import space_of
from jobs.shared import job
from jobs.shared.base import (
    FREE,
    begin,
    code_of,
    code_since,
    interruptible,
    load_model,
    override_names,
    read_beside,
    say,
)
from jobs.shared.data import read_data
from jobs.shared.outside import measuring
from jobs.shared.registry import register
from jobs.shared.settings import check, instantiate, instantiate_editor, workers_of
from jobs.shared.words import setting
from jobs.tune.search import require_optuna
from jobs.tune.settings import TuneSettings
from jobs.tune.tuning import Tuning

logger = logging.getLogger(__name__)


@register(
    "tune",
    TuneSettings,
    aim="tune an editor for a model: its layers, and the two or three settings that matter (docs/tuning.md)",
    choices={"locator": "/locate: trace"},
)
class Job(job.Job):
    """Tunes an editor for a model."""

    def run(self, config: DictConfig, folder: RunFolder) -> float | None:
        """Tunes, or goes on with it.

        Raises:
            FileExistsError: where the tuned model is to be written another one lies.
            SettingsError: a setting cannot be, or Optuna is not installed.
            ValueError: it is not declared what is tuned of the editor; or no trial has figures.
        """
        asked = check(TuneSettings, config.job)
        require_optuna()
        if config.mode not in ("single", "batch"):
            raise ValueError(f"mode={config.mode}: settings are tuned with mode=single or mode=batch")
        if config.mode == "batch" and (number := workers_of(config).number):
            raise SettingsError(f"workers.number={number}: only mode=single spreads the facts of a trial; leave it out")
        if "auto" in (config.editor.get("layer"), config.editor.get("layers")):
            raise ValueError("job=tune finds the layers itself: leave editor.layer=auto (editor.layers=auto) out")
        space_of(instantiate_editor(config.editor))
        if asked.most_drift is not None and not instantiate(config.eval).perplexity_windows:
            raise SettingsError(
                f"job.most_drift={asked.most_drift:g}: eval.perplexity_windows=0 measures no perplexity drift; give "
                "job.most_drift=null, or leave eval.perplexity_windows out"
            )
        facts = read_data(config.data)
        lm = load_model(config)
        if folder.config is not None:
            with folder.held():
                folder.identify(model_fingerprint=lm.fingerprint, data_fingerprint=facts.fingerprint)
                if sum(1 for _ in folder.cases()) < asked.trials:
                    _note_code(config, folder)
                return Tuning(config, asked, folder, lm, facts).run()
        identity = _identity(config, lm, facts)
        with Store(config.store).take(identity, lambda: begin(config, folder), bool(config.force)) as taken:
            if isinstance(taken, RunFolder):
                with interruptible(taken):
                    return Tuning(config, asked, taken, lm, facts).run()
        if taken.state == "running":
            logger.warning("%s: another process is at this run (%s); it is left to it", taken.path, taken.id)
            return None
        more = f"{setting('resume', taken.path)} job.trials=N"
        say(f"finished already: {taken.path} ({more} tries more; force=true runs it again)")
        value = taken.summary.get("value")
        return None if value is None else float(value)


def _code(config: DictConfig) -> str:
    return code_of(config, "jobs.tune.job", *measuring(config.get("plugins")))


def _note_code(config: DictConfig, folder: RunFolder) -> None:
    """Says, and notes, where further trials are by other code; the run's id is another one then."""
    begun = folder.identity.get("code", "")
    if begun and (code := code_since(folder, _code(config), "trials")) != begun:
        folder.go_on_with(code=code, id=run_id({}, folder.identity["id"], "", code))


def _identity(config: DictConfig, lm: LanguageModel, facts: FactSet) -> dict[str, str]:
    """The run's id and what it is of; how far it goes and where it writes are no part of it."""
    plain: Any = OmegaConf.to_container(config, resolve=True)
    code = _code(config)
    plain["job"] = {key: value for key, value in plain["job"].items() if f"job.{key}" not in FREE}
    named = sorted(name for name in override_names() if name.startswith("editor."))  # these are not tuned
    plain["job"] |= {"named": named, "schema": facts.schema}  # by which the objective is chosen
    found = {"model_fingerprint": lm.fingerprint, "data_fingerprint": facts.fingerprint, "code": code}
    return found | {"id": run_id(plain, facts.fingerprint + read_beside(plain, lm), lm.fingerprint, code)}
