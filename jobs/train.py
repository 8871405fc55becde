"""``job=train``: trains the network of an editor that learns to edit (`editing.learned`)."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig
from rich.table import Table

from corrigenda.settings.checked import checked
from corrigenda.system.files import expanded
from editing.learned.hypernetwork import kept_network
from editing.learned.trained import Trained
from editing.learned.training import HypernetworkTraining
from jobs.shared.base import choices, load_model, say, wide_console
from jobs.shared.data import read_data
from jobs.shared.errors import RunInterrupted
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.settings import check, instantiate_editor


@dataclass(frozen=True)
@checked
class TrainSettings(HypernetworkTraining):
    """``job=train``: how the network is trained, and where it goes.

    Attributes:
        to: the network's file; None: where the editor looks for it.
    """

    to: str | None = None


@register(
    "train",
    TrainSettings,
    aim="train the network of an editor that learns to edit; cut short, the same command goes on",
    begins={"editor": "mend"},
)
class Job(StoreJob):
    """Trains a network and writes it."""

    def run(self, config: DictConfig) -> None:
        """Trains, shows the learning curve, and writes the file.

        Raises:
            ValueError: the editor is not trained; the facts cannot be read, are among those of ``data.disjoint_from``,
                or are too few; or the model has no such layer.
            RunInterrupted: it was interrupted.
        """
        asked = check(TrainSettings, config.job)
        editor = instantiate_editor(config.editor)
        if not isinstance(editor, Trained):
            raise ValueError(
                f"editor={choices()['editor']} has no network to train: take editor=mend, editor=malmen or editor=serac"
            )
        facts = list(read_data(config.data))
        lm = load_model(config)
        try:
            trained = asked.network(lm, editor, facts)
        except KeyboardInterrupt:
            raise RunInterrupted("what it learned is kept; give the same command again, which goes on") from None
        place = kept_network(lm, editor.name) if asked.to is None else expanded(asked.to)
        trained.save(place)
        curve = trained.made["curve"]
        table = Table(
            "steps", "loss", "edit", "kl", title="held-out facts: -log P of the new object, and what else moved"
        )
        for point in curve[:: max(1, len(curve) // 20)]:
            table.add_row(str(point["step"]), *(f"{point[name]:.4f}" for name in ("loss", "edit", "kl")))
        wide_console().print(table)
        best = min(curve, key=lambda point: point["loss"])
        say(f"network of {editor.name} for {lm.name} in {place}: that of step {best['step']}, loss {best['loss']:.4f}")
