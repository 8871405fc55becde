"""``job=runs``: lists the runs of the store."""

from __future__ import annotations

from omegaconf import DictConfig

from corrigenda.runs.store import Store, runs_table
from jobs.base import wide_console
from jobs.job import StoreJob


class Job(StoreJob):
    """Lists the runs of the store."""

    def run(self, config: DictConfig) -> None:
        """Prints the table."""
        wide_console().print(runs_table(Store(config.store)))
