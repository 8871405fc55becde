"""``job=leaderboard``: compares the runs of the store."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from omegaconf import DictConfig

from corrigenda.runs.store import Store
from corrigenda.settings.checked import AtLeastOne, checked
from eval.leaderboard import add_submission, leaderboard, write_leaderboard
from jobs.shared.base import say
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.settings import check

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
@checked
class LeaderboardSettings:
    """``job=leaderboard``. ``add=FILE`` takes a submission in first (docs/submissions.md).

    Attributes:
        folder: where the files go.
        file: their name, without suffix.
        min_facts: with fewer common facts nothing is ranked.
        about: how it was made, for the head of the page.
    """

    group: ClassVar[str] = "job"

    folder: str = "outputs"
    file: str = "leaderboard"
    min_facts: AtLeastOne = 30
    about: str = ""


@register(
    "leaderboard",
    LeaderboardSettings,
    aim="compare the runs of the store: Markdown, CSV, JSON and a page",
    run={"folder": "store"},
    beside={"add": None},
)
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
