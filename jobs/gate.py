"""``job=gate``: trains the gate of a model, by which entries beside its weights know their question."""

import re
from dataclasses import dataclass

from omegaconf import DictConfig
from rich.table import Table

from corrigenda.data import FactSet, read_facts
from corrigenda.edits.gate import Gate
from corrigenda.errors import SettingsError
from corrigenda.settings.checked import checked
from corrigenda.system.files import expanded
from editing.gate.kept import kept_gate
from editing.gate.training import GateTraining
from jobs.shared.base import load_model, say, wide_console
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.settings import check

PART = re.compile(r"(.+?)(?:\[(\d*):(\d*)\])?")
"""A file, and which of its facts."""


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
        facts = [fact for part in asked.facts for fact in part_of(part)]
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


def part_of(part: str) -> FactSet:
    """The facts of a file, or of a part of it: ``facts.json[1000:1400]``; bad records are passed over, and said.

    Raises:
        ValueError: the part has no fact, or the file cannot be read.
    """
    found = PART.fullmatch(part)
    if found is None:
        raise SettingsError("job.facts names an empty file: give the path of a file of facts")
    path, begin, end = found[1], int(found[2] or 0), int(found[3]) if found[3] else None
    if end is not None and end <= begin:
        raise SettingsError(f"job.facts={part}: the part is empty; its end is to be above its beginning")
    return read_facts(path, offset=begin, limit=None if end is None else end - begin, on_error="skip")
