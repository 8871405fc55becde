"""``job=measure_again``: measures kept edits of a sequence again, and edits nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import DictConfig
from rich.console import Console

from corrigenda.runs.folder import RunFolder
from corrigenda.settings.checked import AtLeastOne, checked
from corrigenda.system.files import write_json
from eval.protocols.kept import measure_kept
from jobs.shared.base import load_model, say
from jobs.shared.job import StoreJob, stored_config
from jobs.shared.registry import register
from jobs.shared.settings import check, instantiate
from jobs.shared.trust import require_trusted


@dataclass(frozen=True)
@checked
class MeasureAgainSettings:
    """``job=measure_again``: a run with ``job.sequential.keep_edits=true``, measured with ``eval=...`` of now.

    Attributes:
        run: the run's folder; has to be given.
        t: one of its checkpoints; has to be given.
    """

    group: ClassVar[str] = "job"

    run: str | None = None
    t: AtLeastOne | None = None


@register("measure_again", MeasureAgainSettings, aim="measure kept edits of a sequence again")
class Job(StoreJob):
    """Measures what stood after T edits of a sequence, with the metrics that there are now."""

    def run(self, config: DictConfig) -> None:
        """Measures, prints the table and writes ``again-T.json`` into the run's folder."""
        asked = check(MeasureAgainSettings, config.job)
        if asked.run is None or asked.t is None:
            raise ValueError("job=measure_again needs job.run=FOLDER, a run that kept its edits, and job.t=, a T of it")
        folder = Path(asked.run)
        stored = stored_config(folder, f"job.run={asked.run}")
        require_trusted(stored, config, f"job.run={asked.run}")
        settings = instantiate(config.eval)
        lm = load_model(stored)
        found = measure_kept(lm, RunFolder(folder), asked.t, settings)
        figures: dict[str, Any] = {"t": asked.t, "n_failed": len(found.failures), "metrics": found.metrics}
        write_json(folder / f"again-{asked.t:04d}.json", figures)
        Console().print(found.table(f"{folder}: the edits in force after {asked.t} edits, measured again"))
        say(f"figures in {folder / f'again-{asked.t:04d}.json'}")
