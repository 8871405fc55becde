"""``job=runs``: lists the runs of the store."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from omegaconf import DictConfig
from rich.table import Table
from rich.text import Text

from corrigenda.runs.store import Store
from corrigenda.settings.checked import checked
from eval.metrics import METRICS
from jobs.shared.base import wide_console
from jobs.shared.job import StoreJob
from jobs.shared.registry import register

# S is not shown without preservation and perplexity drift, which tell whether the model was wrecked for it.
TOGETHER = {"score", "preservation", "perplexity_drift"}
FIGURES = [METRICS[key] for key in ("score", "preservation", "answer_kept", "perplexity_drift")]


@dataclass(frozen=True)
@checked
class RunsSettings:
    """``job=runs`` has no settings of its own."""

    group: ClassVar[str] = "job"


@register("runs", RunsSettings, aim="list the runs of the store")
class Job(StoreJob):
    """Lists the runs of the store."""

    def run(self, config: DictConfig) -> None:
        """Prints the table."""
        wide_console().print(runs_table(Store(config.store)))


def runs_table(store: Store) -> Table:
    """A table of the store's runs for a terminal, oldest first."""
    table = Table(title=f"runs in {store.root}", title_justify="left")
    columns = ("id", "begun", "job", "editor", "model", "data", "mode", "seed", "n", "state")
    headings = [metric.short for metric in FIGURES]
    for name in (*columns, *headings, "folder"):
        table.add_column(name, justify="right" if name in ("seed", "n", *headings) else "left", overflow="fold")
    colours = {"finished": "green", "running": "cyan", "unfinished": "yellow", "damaged": "red"}
    for run in store.runs():
        chosen, said = dict(run.config.get("choices") or {}), dict(run.summary)
        model = said.get("model") or dict(run.config.get("model") or {}).get("name") or ""
        metrics = dict(said.get("metrics") or {})
        known = metrics.keys() if metrics.keys() >= TOGETHER else ()
        state = Text(f"{run.state}: {run.problem}" if run.problem else run.state, colours[run.state])
        table.add_row(
            *(run.id or "?", run.when.strftime("%Y-%m-%d %H:%M")),
            *(run.job, "" if run.job != "edit" else str(said.get("editor") or chosen.get("editor") or "")),
            Path(str(model)).name,
            *(str(said.get("data") or chosen.get("data") or ""), str(run.config.get("mode", ""))),
            *(str(run.config.get("seed", "")), f"{run.done}/{said['n_facts']}" if "n_facts" in said else str(run.done)),
            state,
            *(metric.written.text(metrics[metric.key]["after"]) if metric.key in known else "" for metric in FIGURES),
            os.path.relpath(run.path, store.root),
        )
    return table
