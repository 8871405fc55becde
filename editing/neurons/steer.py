"""Steering: driving the values that say something, in every prompt.

Geva, Caciularu, Wang and Goldberg 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the
Vocabulary Space", section 5.1: the coefficients of ten values that promote safe words are set to a number, and the
model's texts become less toxic.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from corrigenda import CoefficientEdit, LanguageModel, Origin
from corrigenda.edits.coefficients import How, ScaledAt
from corrigenda.forward.recording import forward_to
from corrigenda.models.alone import one_thread
from corrigenda.models.neurons import Neuron
from corrigenda.settings.checked import check_value


@one_thread
def steer(
    lm: LanguageModel,
    neurons: Mapping[Neuron, float],
    strength: float,
    how: How = "add",
    positions: ScaledAt = "all",
    prompts: Sequence[str] = (),
) -> CoefficientEdit:
    """An edit that drives values, whatever the prompt: each one's coefficient is set to a number, or has it added.

    Args:
        lm: the model.
        neurons: the values by their places (layer, number), each with its direction: 1 for what the value promotes, -1
            for what it promotes with a negative coefficient (in a gated FFN a value may be used either way). Other
            numbers weigh it.
        strength: the number, times the direction; 0 with "add" changes nothing. In units of the root mean square of
            the layer's coefficients over `prompts`, where there are any; else as it is (the paper sets 3).
        how: "set" or "add" (or "scale").
        positions: as in `CoefficientEdit`.
        prompts: texts over which a unit is taken, their first tokens left out.

    Raises:
        IndexError: the model has no such layer or neuron.
        ValueError: no neuron is named, or a strength or a prompt is no such thing.
    """
    if not neurons:
        raise ValueError("no neuron is named, so there is nothing to steer by")
    strength = check_value("steer", "strength", strength, float)
    places = [(*lm.memory(layer).place(number), direction) for (layer, number), direction in neurons.items()]
    units = _units(lm, prompts, {layer for layer, _, _ in places}) if prompts else {}
    amounts = {
        (layer, number): strength * float(direction) * units.get(layer, 1.0) for layer, number, direction in places
    }
    settings: dict[str, Any] = {"strength": strength, "how": how, "positions": positions}
    settings["neurons"] = [list(place) for place in places]
    settings["units"] = {str(layer): unit for layer, unit in units.items()}
    origin = Origin(lm.name, lm.fingerprint, "steer", settings)
    return CoefficientEdit.of(lm, origin, amounts, positions, how)


@torch.no_grad()
def _units(lm: LanguageModel, prompts: Sequence[str], layers: Iterable[int]) -> dict[int, float]:
    """The root mean square of each layer's coefficients at all tokens of some prompts but the first."""
    squares = dict.fromkeys(layers, 0.0)
    n = 0
    for prompt in prompts:
        batch = lm.batch([lm.tokens(prompt)])
        with ExitStack() as stack:
            seen = {layer: stack.enter_context(lm.memory(layer).capture()) for layer in squares}
            forward_to(lm, batch, max(squares))
        for layer, each in seen.items():
            squares[layer] += float(each.coefficients[0, 1:].double().square().mean(-1).sum())
        n += batch.input_ids.shape[1] - 1
    if not n:
        raise ValueError("the prompts have no token after their first, so no unit of coefficients can be taken")
    return {layer: (total / n) ** 0.5 for layer, total in squares.items()}
