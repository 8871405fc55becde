"""``job=gate``: trains the gate of a model, by which entries beside its weights know their question."""

from dataclasses import dataclass

from omegaconf import DictConfig
from rich.table import Table

from corrigenda.data import read_facts
from corrigenda.settings.checked import AtLeastOne, Count, checked
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
        facts: files of facts whose prompts and paraphrases are more questions to train on; facts that will be edited
            and scored should not be among them.
        offset: so many facts of each file are passed over.
        limit: so many of each are taken; None: all.
        to: the gate's file; None: where the editor `scoped` looks for it.
    """

    facts: tuple[str, ...] = ()
    offset: Count = 0
    limit: AtLeastOne | None = None
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
        facts = [fact for path in asked.facts for fact in read_facts(path, offset=asked.offset, limit=asked.limit)]
        lm = load_model(config)
        gate = asked.gate(lm, facts)
        place = kept_gate(lm) if asked.to is None else expanded(asked.to)
        gate.save(place)
        found = gate.made["recall"]
        table = Table("false hits", *found, title="prompts that ask the same and pass, at a share of others that do")
        for share in next(iter(found.values())):
            table.add_row(share, *(f"{100 * column[share]:.0f} %" for column in found.values()))
        wide_console().print(table)
        same, other = gate.made["pairs"]
        say(f"of {same} pairs that ask the same about a subject, and {other} that do not; none of the names was seen")
        say(f"gate of {lm.name} in {place}: layers {gate.layers}, threshold {gate.threshold:.3f}")
