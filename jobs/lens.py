"""``job=lens``: the FFN lens over running text: values in words, triggers of all keys, and what comes of both.

Each part is found once: its result, when it is there, is in ``results/PART``, and a run that was cut short goes on with
the next one. (The triggers' pass over the text goes on from the batch that it has come to.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from omegaconf import DictConfig
from rich.console import Console

from corrigenda.errors import SettingsError
from corrigenda.moments.text import Text
from corrigenda.runs.folder import RunFolder
from corrigenda.settings.checked import AtLeastOne, Count, Seed, ShareAboveZero, checked
from corrigenda.system.files import write_json
from corrigenda.text.names import did_you_mean
from jobs.shared import job
from jobs.shared.base import load_model, say, take_up
from jobs.shared.registry import register
from jobs.shared.settings import Picture, check, instantiate
from locate import read_values
from locate.lens.aggregation import Aggregation, aggregation
from locate.lens.agreement import Agreement, agreement
from locate.lens.saturation import SaturationEvents, saturation_events
from locate.lens.sensitivity import Sensitivity, sensitivity
from locate.lens.triggers import Triggers, trigger_examples
from locate.lens.values import ValueWords

if TYPE_CHECKING:
    from corrigenda import LanguageModel
    from locate.locator import Result


@dataclass(frozen=True)
@checked
class LensSettings:
    """``job=lens``.

    Attributes:
        parts: what is found, in this order; sensitivity and agreement need triggers.
        triggers: prefixes kept of each neuron (triggers).
        neurons: of each layer, from whose triggers tokens are removed (sensitivity).
        removed_from: triggers of each (sensitivity).
        texts: one position in each of so many texts (aggregation).
        holding: memories are active that hold this share of the sum of |m_i| |v_i| (aggregation).
        events: one position in each of so many texts (sub_updates).
        examples: neurons of each layer whose triggers are written out as texts (triggers).
        seed: of what is drawn.
        picture: the suffix of pictures.
    """

    group: ClassVar[str] = "job"

    parts: tuple[str, ...] = ("values", "triggers", "sensitivity", "agreement", "aggregation", "sub_updates")
    triggers: AtLeastOne = 25
    neurons: AtLeastOne = 10
    removed_from: AtLeastOne = 3
    texts: AtLeastOne = 1000
    holding: ShareAboveZero = 0.9
    events: AtLeastOne = 200
    examples: Count = 10
    seed: Seed = 0
    picture: Picture = ".png"


@dataclass(frozen=True)
class Given:
    """What a part of the lens works on; `found` has by name the results of the parts before it."""

    lm: LanguageModel
    text: Text
    asked: LensSettings
    found: Mapping[str, Any]


@dataclass(frozen=True)
class LensPart:
    """A part of the lens: what finds its result, what reads a saved one, and the parts whose results it needs."""

    find: Callable[[Given], Result]
    load: Callable[[Path], Result]
    needs: tuple[str, ...] = ()


def _sensitivity(given: Given) -> Sensitivity:
    asked = given.asked
    return sensitivity(given.lm, given.found["triggers"], asked.neurons, asked.removed_from, asked.seed)


def _agreement(given: Given) -> Agreement:
    return agreement(given.lm, given.found["triggers"], given.asked.seed)


def _aggregation(given: Given) -> Aggregation:
    asked = given.asked
    return aggregation(given.lm, given.text, asked.texts, asked.holding, asked.seed)


def _sub_updates(given: Given) -> SaturationEvents:
    return saturation_events(given.lm, given.text, given.asked.events, seed=given.asked.seed)


PARTS: Mapping[str, LensPart] = {
    "values": LensPart(lambda given: read_values(given.lm), ValueWords.load),
    "triggers": LensPart(lambda given: trigger_examples(given.lm, given.text, given.asked.triggers), Triggers.load),
    "sensitivity": LensPart(_sensitivity, Sensitivity.load, needs=("triggers",)),
    "agreement": LensPart(_agreement, Agreement.load, needs=("triggers",)),
    "aggregation": LensPart(_aggregation, Aggregation.load),
    "sub_updates": LensPart(_sub_updates, SaturationEvents.load),
}
"""The parts, by the names that ``job.parts`` has.

A further one is a function and a line here; its result has `summary`, `table`, `plot`, `save` and `load`
(`locate.locator.Result`), and nothing else has to be touched.
"""


@register(
    "lens",
    LensSettings,
    aim="the FFN lens over running text: what triggers each key, and what memories and layers make of it",
    parts={"text": Text(tokens=131072)},
)
class Job(job.Job):
    """Finds the parts that are asked for: a result, a picture and a table of each, and a summary."""

    def run(self, config: DictConfig, folder: RunFolder) -> None:
        """Finds them, or goes on with it."""
        asked = check(LensSettings, config.job)
        _check_parts(asked.parts)
        text: Text = instantiate(config.job.text)
        found: dict[str, Any] = {}
        with folder.held():
            lm = load_model(config)
            take_up(self, config, folder, model_fingerprint=lm.fingerprint, text=text.fitting(lm).key(lm))
            for name in asked.parts:
                place = folder.path / "results" / name
                if any(place.glob("*.json")):  # results write their JSON last
                    found[name] = PARTS[name].load(place)
                else:
                    found[name] = PARTS[name].find(Given(lm, text, asked, found))
                    found[name].plot(folder.path / f"{name}{asked.picture}")
                    if name == "triggers":
                        write_json(folder.path / "examples.json", _examples(lm, found[name], asked))
                    found[name].save(place)
            folder.finish({"model": lm.name, **{name: result.summary() for name, result in found.items()}})
        printer = Console()
        for result in found.values():
            printer.print(result.table())
        say(f"results and pictures in {folder.path}")


def _check_parts(parts: tuple[str, ...]) -> None:
    """Checks that the parts are known, each once, and each behind those that it needs, or raises SettingsError."""
    for place, name in enumerate(parts):
        if name not in PARTS:
            hint = did_you_mean(name, list(PARTS), most=1)
            raise SettingsError(f"job.parts: there is no part {name!r}; {hint or 'the parts are ' + ', '.join(PARTS)}")
        if name in parts[:place]:
            raise SettingsError(f"job.parts names {name!r} twice")
        missing = [each for each in PARTS[name].needs if each not in parts[:place]]
        if missing:
            raise SettingsError(f"job.parts: {name!r} needs {', '.join(missing)} before it")
    if not parts:
        raise SettingsError(f"job.parts=[] names no part; the parts are {', '.join(PARTS)}")


def _examples(lm: LanguageModel, triggers: Triggers, asked: LensSettings) -> list[dict[str, Any]]:
    """The triggers of some neurons of each layer as texts, drawn at random."""
    draw = random.Random(asked.seed)
    neurons = range(triggers.coefficients.shape[1])
    places = [
        (layer, neuron)
        for layer in range(triggers.n_layers)
        for neuron in sorted(draw.sample(neurons, min(asked.examples, len(neurons))))
    ]
    return [
        {"layer": layer, "neuron": neuron, "triggers": [vars(each) for each in triggers.examples(lm, layer, neuron)]}
        for layer, neuron in places
    ]
