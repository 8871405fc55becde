"""``job=measure_again``: measures kept edits of a sequence again, and edits nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from corrigenda.files import write_json
from corrigenda.runs.folder import RunFolder
from eval.protocols.kept import measure_kept
from jobs.base import load_model, say
from jobs.job import StoreJob, stored_config
from jobs.settings import MeasureAgainSettings, check, made
from jobs.trust import require_trusted


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
        settings = made(config.eval)
        lm = load_model(stored)
        found = measure_kept(lm, RunFolder(folder), asked.t, settings)
        figures: dict[str, Any] = {"t": asked.t, "n_failed": len(found.failures), "metrics": found.metrics}
        write_json(folder / f"again-{asked.t:04d}.json", figures)
        Console().print(found.table(f"{folder}: the edits in force after {asked.t} edits, measured again"))
        say(f"figures in {folder / f'again-{asked.t:04d}.json'}")
