"""``job=gate``: trains the gate of a model, by which entries beside its weights know their question."""

from dataclasses import dataclass

from omegaconf import DictConfig
from rich.table import Table

from corrigenda.data import read_part
from corrigenda.edits.gate import Gate
from corrigenda.settings.checked import checked
from corrigenda.system.files import expanded
from editing.gate.kept import kept_gate
from editing.gate.training import GateTraining
from jobs.shared.base import load_model, say, wide_console
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.settings import check


@dataclass(frozen=True)
@checked
class GateSettings(GateTraining):
    """``job=gate``: how it is trained, of what besides the shipped relations, and where it goes.

    Attributes:
        facts: files of facts whose prompts and paraphrases are more questions to train on, or parts of them, as
            ``facts.json[1000:1400]``; facts that will be edited and scored should not be among them.
        maps: the file of a gate of the same model in another precision: its maps are taken, and the threshold alone is
            found anew.
        to: the gate's file; None: where the editor `scoped` looks for it.
    """

    facts: tuple[str, ...] = ()
    maps: str | None = None
    to: str | None = None


@register("gate", GateSettings, aim="train the gate of a model, which tells questions apart for entries beside it")
class Job(StoreJob):
    """Trains a gate and writes it."""

    def run(self, config: DictConfig) -> None:
        """Trains, says how well it tells questions apart, and writes the file.

        Raises:
            ValueError: a file of facts cannot be read, or the model has no such layer.
        """
        asked = check(GateSettings, config.job)
        facts = [fact for part in asked.facts for fact in read_part(part)]
        lm = load_model(config)
        gate = asked.gate(lm, facts) if asked.maps is None else asked.tried(lm, Gate.load(expanded(asked.maps)))
        place = kept_gate(lm) if asked.to is None else expanded(asked.to)
        gate.save(place)
        table = Table("of others, so many pass", "of those that ask the same", title="Prompts about the same subject")
        for share, passed in gate.made["recall"].items():
            table.add_row(share, f"{100 * passed:.0f} %")
        wide_console().print(table)
        same, other = gate.made["pairs"]
        say(f"{same} pairs ask the same, {other} do not; none of the forms and names was seen in training")
        say(f"gate of {lm.name} in {place}: layers {gate.layers}, threshold {gate.threshold:.3f}")
