"""``job=capacity``: how many bits edits hold, by the number of facts in them."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from omegaconf import DictConfig
from rich.console import Console

from corrigenda import Fact
from corrigenda.data import FactSet
from corrigenda.data.biographies import biographies, candidates
from corrigenda.errors import SettingsError
from corrigenda.runs.folder import RunFolder
from corrigenda.settings.checked import AtLeastOne, Seed, checked
from editing.knowledge.how import BESIDE, how_named
from editing.registry import editor_class, presets
from jobs.capacity.measuring import Way, batches, measure_capacity
from jobs.shared import job
from jobs.shared.base import load_model, override_names, say, take_up
from jobs.shared.registry import register
from jobs.shared.settings import Picture, check, instantiate_editor


@dataclass(frozen=True)
@checked
class CapacitySettings:
    """``job=capacity``.

    Attributes:
        ways: names of editors, with the defaults of their classes, or attached (entries beside the weights); none: the
            editor that ``editor=`` names, with its settings.
        counts: of made facts in one edit, ascending.
        at_least: so many facts are edited for each count, by several edits where the count is smaller.
        each: relations that are told of one made person, 1 to 5.
        seed: of the names and values.
        picture: the suffix of the picture.
    """

    group: ClassVar[str] = "job"

    ways: tuple[str, ...] = ()
    counts: tuple[AtLeastOne, ...] = (1, 4, 16, 64)
    at_least: AtLeastOne = 8
    each: AtLeastOne = 1
    seed: Seed = 0
    picture: Picture = ".png"

    def __post_init__(self) -> None:
        if not self.counts or list(self.counts) != sorted(set(self.counts)):
            raise SettingsError(f"job.counts={list(self.counts)} must be numbers of facts, each larger than the last")
        if len(set(self.ways)) < len(self.ways):
            raise SettingsError(f"job.ways={list(self.ways)} names a way twice; name each once")

    def facts(self) -> tuple[Fact, ...]:
        """All facts that are edited."""
        most = max(places.stop for _, places in batches(self.counts, self.at_least))
        return biographies(most, self.seed, self.each)


def way_named(name: str, seed: int) -> Way:
    """An editor's way to put facts into a model, or one beside the weights.

    Raises:
        SettingsError: it is a preset, whose settings lie in a file.
        ValueError: there is no such way.
    """
    if name in BESIDE:
        how = how_named(name)
        return lambda lm, facts: how.compiler(lm, facts, how.solver(lm, facts))
    if name in presets():
        raise SettingsError(f"job.ways: {name} has settings of its own; leave job.ways out and give editor={name}")
    editor: Any = editor_class(name)()
    return dataclasses.replace(editor, seed=seed).edit if hasattr(editor, "seed") else editor.edit


@register(
    "capacity",
    CapacitySettings,
    aim="how many bits edits hold, over made facts, by the number of facts in one edit",
)
class Job(job.Job):
    """Edits more and more made facts, and measures what of them the model then knows: a result, a picture, a table."""

    def run(self, config: DictConfig, folder: RunFolder) -> None:
        """Measures, or goes on with it."""
        asked = check(CapacitySettings, config.job)
        if asked.ways:
            if given := [name for name in override_names() if name.partition(".")[0] == "editor"]:
                raise SettingsError(
                    f"job.ways: its editors have their defaults, and {given[0]} no effect; leave one out"
                )
            ways = {name: way_named(name, config.seed) for name in asked.ways}
        else:
            editor = instantiate_editor(config.editor)
            ways = {editor.name: editor.edit}
        facts = asked.facts()
        with folder.held():
            lm = load_model(config)
            data = FactSet("biographies", facts).fingerprint
            take_up(self, config, folder, model_fingerprint=lm.fingerprint, data_fingerprint=data)
            found = measure_capacity(lm, facts, candidates(), ways, asked.counts, asked.at_least, folder)
            found.save(folder.path / "result")
            found.plot(folder.path / f"capacity{asked.picture}")
            folder.finish(found.summary())
        Console().print(found.table())
        say(f"figures and picture in {folder.path}")
