"""Neurons of a model, named by their places: what locators find and editors change."""

from collections.abc import Iterable, Mapping
from typing import Any

from corrigenda.models.bare import BareModel
from corrigenda.settings.checked import short_repr

Neuron = tuple[int, int]
"""A layer (negative: from the end) and the number of a coefficient, key and value in it."""


def as_neurons(given: Iterable[Any]) -> tuple[Neuron, ...]:
    """Pairs of whole numbers, from whatever pairs are given (lists of a configuration).

    Raises:
        ValueError: something is no such pair.
    """
    if not isinstance(given, Iterable):
        raise ValueError(f"neurons are a list of pairs (layer, number), not {short_repr(given)}")
    neurons = []
    for place in given:
        try:
            layer, neuron = place
            neurons.append((_whole(layer), _whole(neuron)))
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"a neuron is a pair (layer, number), not {short_repr(place)}: two whole numbers"
            ) from None
    return tuple(neurons)


def _whole(value: Any) -> int:
    if isinstance(value, (bool, str)) or int(value) != value:
        raise ValueError("1.7, '1' and true are no whole numbers")
    return int(value)


def in_model(lm: BareModel, neurons: Iterable[Neuron]) -> tuple[Neuron, ...]:
    """Each neuron once, in the order given, its layer counted from the bottom.

    Raises:
        IndexError: the model has no such layer or neuron.
    """
    return tuple(dict.fromkeys(lm.memory(layer).place(neuron) for layer, neuron in neurons))


def in_common(counts: Mapping[Neuron, int], n: int, share: float) -> tuple[Neuron, ...]:
    """The neurons that more than a share of n sets have (Dai et al. 2022, sections 3.3 and 5.2).

    `counts` says in how many each is. The most frequent come first, of equally frequent ones the lower layer and
    number.
    """
    # A share such as 0.7 is no exact number: 0.7 * 10 sets must not fall below 7.
    kept = [neuron for neuron, count in counts.items() if count > share * n + 1e-9]
    return tuple(sorted(kept, key=lambda neuron: (-counts[neuron], neuron)))
