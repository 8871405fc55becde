"""`AddedNeuronsEdit`: further neurons of one layer's feed-forward network, beside its own.

Huang, Shen, Zhang, Zhou, Rong and Xiong 2023, "Transformer-Patcher: One Mistake Worth One Neuron".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda.edits.edit import Editable
from corrigenda.edits.hooked import HookedEdit, require_range
from corrigenda.edits.origin import require_finite
from corrigenda.errors import WrongModelError
from corrigenda.models.memory import FFNMemory


@dataclass(frozen=True, eq=False)
class AddedNeuronsEdit(HookedEdit):
    """Neurons that make a layer's feed-forward network wider, at every token.

    The layer's own neurons stay as they are. To what they answer to an input x is added, with the layer's own f:

        plain FFN   f(x K^T + b) V
        gated FFN   (f(x K^T + b) * (x U^T)) V

    `LanguageModel.save_pretrained` writes them into the layer's matrices, which are then wider.

    Attributes:
        layer: the layer.
        module: the name of the module that holds the layer's values.
        keys: K, what f reads (rows of the gate where the FFN is gated), (neuron, d_model), in float32 on the CPU.
        ups: U of a gated FFN, (neuron, d_model); of a plain one without rows, (0, d_model).
        biases: b, (neuron,).
        values: V, (neuron, d_model).

    Raises:
        EditRefusedError: a tensor is not finite.
        ValueError: shapes do not fit one another.
    """

    layer: int
    module: str
    keys: Tensor
    ups: Tensor
    biases: Tensor
    values: Tensor
    kind: ClassVar[str] = "added_neurons"
    saved_tensors: ClassVar[tuple[str, ...]] = ("keys", "ups", "biases", "values")
    saved_settings: ClassVar[tuple[str, ...]] = ("layer", "module")
    elsewhere: ClassVar[str] = (
        "a GGUF file has other tensors where the networks are wider; write the wider model as a folder (corrigenda "
        "export form=model, lm.save_pretrained), and convert that by llama.cpp's convert_hf_to_gguf.py"
    )

    def __post_init__(self) -> None:
        for name in self.saved_tensors:
            object.__setattr__(self, name, getattr(self, name).detach().float().cpu())
        n, d_model = self.values.shape
        fits = self.keys.shape == (n, d_model) and self.ups.shape in ((n, d_model), (0, d_model))
        if not fits or self.biases.shape != (n,):
            shapes = ", ".join(f"{name} {tuple(getattr(self, name).shape)}" for name in self.saved_tensors)
            raise ValueError(f"added neurons do not fit one another: {shapes}")
        require_finite(self.kind, self._tensors())

    @property
    def touched(self) -> tuple[int, ...]:
        """The one layer."""
        return (self.layer,)

    def _check(self, lm: Any) -> None:
        if not 0 <= self.layer < lm.n_layers:
            raise WrongModelError(f"the {self.kind} edit is of layer {self.layer}, {lm.name} has {lm.n_layers}")
        memory = lm.memory(self.layer)
        gated = memory.is_gated
        if (memory.path, memory.d_model) != (self.module, self.values.shape[1]) or gated != bool(len(self.ups)):
            mine, its = ("gated" if form else "plain" for form in (len(self.ups), gated))
            raise WrongModelError(
                f"the {self.kind} edit is of {self.module}, {mine} and {self.values.shape[1]} wide; the values of "
                f"layer {self.layer} of {lm.name} are {memory.path}, {its} and {memory.d_model} wide"
            )

    @contextmanager
    def _hooks(self, lm: Editable) -> Iterator[None]:
        memory = lm.memory(self.layer)
        parts = [getattr(self, name).to(memory.weight.device) for name in self.saved_tensors]

        def change(inputs: Tensor, output: Tensor) -> Tensor | None:
            new = output + answer(memory, inputs.to(torch.float32), *parts).to(output.dtype)
            require_range(self.kind, self.layer, new)
            return new

        with memory.respond(change):
            yield

    def _summary(self) -> str:
        return f"layer {self.layer}, {len(self.values)} neurons, |values| {float(self.values.norm()):.3f}"


def answer(memory: FFNMemory, inputs: Tensor, keys: Tensor, ups: Tensor, biases: Tensor, values: Tensor) -> Tensor:
    """What added neurons answer to the FFN's input, (..., d_model) -> (..., d_model); differentiable."""
    coefficients = memory.activate(inputs @ keys.T + biases)
    if len(ups):
        coefficients = coefficients * (inputs @ ups.T)
    return coefficients @ values
