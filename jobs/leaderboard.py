"""``job=leaderboard``: compares the runs of the store."""

from __future__ import annotations

import logging
from pathlib import Path

from omegaconf import DictConfig

from corrigenda.runs.store import Store
from eval.leaderboard import add_submission, leaderboard, write_leaderboard
from jobs.base import say
from jobs.job import StoreJob
from jobs.settings import LeaderboardSettings, check

logger = logging.getLogger(__name__)


class Job(StoreJob):
    """Writes the leaderboard of the store; first takes in a submission, if there is one."""

    def run(self, config: DictConfig) -> None:
        """Writes the files and names them."""
        store, job = Store(config.store), check(LeaderboardSettings, config.job)
        if config.add is not None:
            say(f"added: {add_submission(Path(config.add), store)}")
        found = leaderboard(store.runs(), job.min_facts)
        for path in write_leaderboard(found, Path(job.folder), job.file, job.about):
            say(str(path))
        for run in found.left_out:
            logger.warning("left out: %s: %s", run.path, run.why)
