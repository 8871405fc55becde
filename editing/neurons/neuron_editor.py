"""What the editors of single neurons have in common: which neurons they change.

These are given, or asked of a locator: a callable that takes the model and a fact and returns places (layer, neuron).
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from corrigenda import Fact, LanguageModel, Origin
from corrigenda.errors import SettingsError
from corrigenda.facts import as_facts
from corrigenda.models.neurons import Neuron, as_neurons, in_model
from corrigenda.settings.checked import checked
from editing.editor import EditRefusedError, FactRefusedError

Find = Callable[[LanguageModel, Fact], Iterable[Neuron]]
FIND = {"find": "/locate: neurons"}
"""On the command line a locator finds them, unless `editor.find=null editor.neurons=[...]` names some."""


@dataclass(frozen=True)
@checked
class NeuronEditor:
    """What the neuron editors have in common: where the neurons come from.

    Attributes:
        neurons: places (layer, neuron), the same for every fact; or for each fact's id its own.
        find: what finds the neurons of a fact, instead.

    Raises:
        ValueError: neither or both are given.
    """

    neurons: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None
    find: Find | None = None

    name: ClassVar[str]

    def __post_init__(self) -> None:
        if (self.neurons is None) == (self.find is None):
            raise SettingsError(f"{type(self).__name__} needs either neurons or a callable that finds them")
        if isinstance(self.neurons, Mapping):
            given: Any = {name: as_neurons(places) for name, places in self.neurons.items()}
        else:
            given = None if self.neurons is None else as_neurons(self.neurons)
        object.__setattr__(self, "neurons", given)

    def neurons_of(self, lm: LanguageModel, fact: Fact) -> tuple[Neuron, ...]:
        """The neurons of one fact, layers counted from the first.

        Raises:
            FactRefusedError: there are none, or the locator cannot say.
            IndexError: the model has no such neuron.
        """
        if self.find is not None:
            try:
                places = as_neurons(self.find(lm, fact))
            except ValueError as error:
                raise FactRefusedError(fact, f"{self.name}: no neurons for it: {error}") from error
        elif isinstance(self.neurons, Mapping):
            if fact.id not in self.neurons:
                raise FactRefusedError(fact, f"{self.name}: no neurons are given for it")
            places = as_neurons(self.neurons[fact.id])
        else:
            places = as_neurons(self.neurons or ())
        if not places:
            raise FactRefusedError(fact, f"{self.name}: it has no neuron to change")
        return in_model(lm, places)

    def neurons_of_all(self, lm: LanguageModel, facts: Sequence[Fact]) -> list[tuple[Neuron, ...]]:
        """The neurons of each fact. Raises EditRefusedError: there is no fact; FactRefusedError: one has no neurons."""
        as_facts(self.name, facts)
        if not facts:
            raise EditRefusedError(f"{self.name}: no fact to edit")
        return [self.neurons_of(lm, fact) for fact in facts]

    def origin(self, lm: LanguageModel, facts: Sequence[Fact], found: Sequence[Sequence[Neuron]]) -> Origin:
        """Where an edit comes from; the neurons of each fact stand in its report."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        settings["find"] = _described(self.find)
        report = tuple({"neurons": [list(place) for place in places]} for places in found)
        return Origin(lm.name, lm.fingerprint, self.name, settings, tuple(facts), report)


def _described(find: object) -> Any:
    """The locator as JSON values, for the edit's origin."""
    if find is None:
        return None
    if dataclasses.is_dataclass(find) and not isinstance(find, type):
        return {"name": type(find).__qualname__, **dataclasses.asdict(find)}
    if isinstance(find, partial):
        return {"name": getattr(find.func, "__qualname__", repr(find.func)), **find.keywords}
    return {"name": getattr(find, "__qualname__", type(find).__qualname__)}
