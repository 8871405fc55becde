"""Trackers: who is told every finished case of a run, and at the end its summary and pictures. None can stop a run."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

Record = Mapping[str, Any]


class Tracker(Protocol):
    """Something that is told how a run goes."""

    def case(self, number: int, record: Record) -> None:
        """A fact was finished; `record` is its line in ``cases.jsonl``."""

    def finish(self, summary: Record) -> None:
        """The run was finished; `summary` is what stands in ``summary.json``."""


def tracker(settings: Mapping[str, Any], folder: Path, config: Mapping[str, Any], sweep: str | None = None) -> Tracker:
    """The tracker that ``settings["name"]`` names; what it writes goes into the run's folder.

    What fails in it, from the first import on, is a warning, and then the run goes on without it. `sweep` is the folder
    of the sweep that the run belongs to, if any. Raises ValueError: there is no tracker of that name.
    """
    options = dict(settings)
    name = options.pop("name")
    if name == "none":
        return NoTracker()
    if name not in TRACKERS:
        raise ValueError(f"logger.name={name}: the loggers are none, {', '.join(TRACKERS)}")
    return _Guarded(name, lambda: TRACKERS[name](folder, config, sweep, **options))


class NoTracker:
    """Tells nobody."""

    def case(self, number: int, record: Record) -> None:
        """Nothing."""

    def finish(self, summary: Record) -> None:
        """Nothing."""


class _Guarded:
    """Another tracker, whose first failure is a warning and its end."""

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self._name = name
        self._tracker: Tracker = NoTracker()
        self._try(lambda: setattr(self, "_tracker", make()))

    def case(self, number: int, record: Record) -> None:
        self._try(lambda: self._tracker.case(number, record))

    def finish(self, summary: Record) -> None:
        self._try(lambda: self._tracker.finish(summary))

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._tracker = NoTracker()
            warnings.warn(f"{self._name} failed, the run goes on without it: {error!r}", stacklevel=4)


class WandbTracker:
    """Weights & Biases; offline unless ``WANDB_MODE`` says otherwise.

    The configuration; for each case its metrics and, where the editor reports them, the losses of its steps; at the end
    a table of the cases, the pictures and the summary.

    Args:
        folder: the run's folder; its name is the run's.
        config: the configuration to keep.
        sweep: the folder of the sweep, which groups its runs unless `group` is given.
        project: where the run goes.
        entity: whose project it is.
        group: the name of the group.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        sweep: str | None,
        project: str,
        entity: str | None = None,
        group: str | None = None,
    ) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._wandb: Any = wandb
        self._folder = folder
        self._rows: list[dict[str, Any]] = []
        self._run: Any = wandb.init(
            project=project,
            entity=entity,
            group=group or sweep,
            dir=folder,
            config=dict(config),
            mode=mode,
            name=folder.name,
            reinit="create_new",  # a run before it in this process may have failed without an end
        )
        # Steps of their own: cases and the steps within a case are counted apart.
        self._run.define_metric("case/*", step_metric="case_number")
        self._run.define_metric("losses/*", step_metric="edit_step")

    def case(self, number: int, record: Record) -> None:
        """Logs a case's metrics at its number, and its losses."""
        for name, losses in step_losses(record):
            for step, loss in enumerate(losses):
                self._run.log({f"losses/{record['id']}/{name}": loss, "edit_step": step})
        values = {f"case/{key}": value for key, value in record["after"]["values"].items()}
        self._run.log(values | {"case_number": number})
        self._rows.append({"case": number} | row(record))

    def finish(self, summary: Record) -> None:
        """Logs the table of cases, the pictures and the summary, and ends the run."""
        if self._rows:
            columns = list(dict.fromkeys(key for values in self._rows for key in values))
            data = [[values.get(column) for column in columns] for values in self._rows]
            self._run.log({"cases": self._wandb.Table(columns=columns, data=data)})
        for path in pictures(self._folder):
            self._run.log({f"pictures/{path.stem}": self._wandb.Image(str(path))})
        for key, moment, value in figures(summary):
            self._run.summary[f"{key}/{moment}"] = value
        self._run.finish()


class TensorBoardTracker:
    """TensorBoard event files in the folder ``tensorboard`` of the run.

    Args:
        folder: the run's folder.
        config: the configuration, kept as text.
        sweep: not used: ``tensorboard --logdir`` of a sweep's folder shows all its runs.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], sweep: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = folder
        self._writer: Any = SummaryWriter(log_dir=str(folder / "tensorboard"))
        self._writer.add_text("config", f"```json\n{json.dumps(dict(config), indent=2, default=str)}\n```")

    def case(self, number: int, record: Record) -> None:
        """Writes a case's metrics at its number, and its losses at their steps."""
        for key, value in record["after"]["values"].items():
            self._writer.add_scalar(f"case/{key}", value, number)
        for name, losses in step_losses(record):
            for step, loss in enumerate(losses):
                self._writer.add_scalar(f"losses/{record['id']}/{name}", loss, step)
        self._writer.add_text("cases", json.dumps(row(record), ensure_ascii=False), number)
        self._writer.flush()

    def finish(self, summary: Record) -> None:
        """Writes the pictures and the summary."""
        import matplotlib.image

        for path in pictures(self._folder):
            self._writer.add_image(f"pictures/{path.stem}", matplotlib.image.imread(path), dataformats="HWC")
        for key, moment, value in figures(summary):
            self._writer.add_scalar(f"summary/{key}/{moment}", value)
        self._writer.close()


TRACKERS: dict[str, Callable[..., Tracker]] = {"wandb": WandbTracker, "tensorboard": TensorBoardTracker}
"""By name: what makes it from the run's folder, the configuration, the sweep's folder, and its own settings."""


def step_losses(record: Record) -> Iterator[tuple[str, list[float]]]:
    """The losses of an edit's steps that an editor reported: lists of numbers with "loss" in their name."""
    for name, values in (record.get("edit") or {}).items():
        if "loss" in name and isinstance(values, (list, tuple)) and values and all(map(_is_number, values)):
            yield name, [float(value) for value in values]


def row(record: Record) -> dict[str, Any]:
    """A case as a row of a table: what was asked, what the model gave before and after, and the metrics."""
    fact = record["fact"]
    found: dict[str, Any] = {
        "id": record["id"],
        "prompt": fact["prompt"].replace("{}", fact["subject"]),
        "target_true": fact.get("target_true"),
        "target_new": fact.get("target_new"),
        "error": record["error"],
        "seconds": record["seconds"],
    }
    for moment in ("before", "after"):
        prompts = (record[moment] or {}).get("prompts", {}).get("prompt", [])
        if prompts:
            found |= {f"{key} {moment}": prompts[0].get(key) for key in ("p_new", "p_true", "answer")}
    return found | dict(record["after"]["values"])


def figures(summary: Record) -> Iterator[tuple[str, str, float]]:
    """The figures of a summary as (metric, moment, value); what is not known is left out."""
    for key, values in summary["metrics"].items():
        for moment in ("before", "after", "low", "high"):
            if values.get(moment) is not None:
                yield key, moment, values[moment]
    for key in ("seconds_per_edit", "peak_memory_mb", "n_facts", "n_failed"):
        if _is_number(summary.get(key)):
            yield key, "run", summary[key]


def pictures(folder: Path) -> list[Path]:
    """The pictures in a run's folder, without those that a tracker keeps there."""
    return sorted(path for path in folder.rglob("*.png") if path.relative_to(folder).parts[0] not in TRACKERS)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
