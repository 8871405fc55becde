"""`FFNMemory`: the feed-forward network of one layer, seen as a key-value memory, the same for every family.

For the FFN's input x in R^d (Geva et al. 2021, "Transformer Feed-Forward Layers Are Key-Value Memories"):

    plain   m = f(x K^T + b1)               FFN(x) = m V + b2
    gated   m = f(x G^T) * (x U^T)          FFN(x) = m V

m in R^{d_ffn} are the coefficients, the rows of V (d_ffn x d) the values. Every reading and every change goes
through the module that holds V: its input are the coefficients and its output is FFN(x), in every family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from corrigenda.models import positions
from corrigenda.models.architecture import Architecture, stores_transposed
from corrigenda.models.positions import At


class Seen:
    """What `FFNMemory.capture` saw in the last forward.

    Attributes:
        coefficients: m, (batch, position, d_ffn), or (n, d_ffn) at n chosen positions.
        output: FFN(x), (batch, position, d_model), or (n, d_model); None before a forward ran.
    """

    coefficients: Tensor
    output: Tensor


class FFNMemory:
    """Keys, coefficients and values of one layer.

    Obtained from `LanguageModel.memory(layer)`. The methods that change a forward (`add`, `replace`, `scale`) are
    context managers: the change holds inside the ``with`` block, is differentiable in what is put in, and is gone
    after it, also when the block raises. Where several are open at once they act in the order they were opened.

    Args:
        architecture: the model's parts.
        layer: 0 for the first block; negative numbers count from the end.

    Raises:
        IndexError: the model has no such layer.
    """

    def __init__(self, architecture: Architecture, layer: int) -> None:
        depth = architecture.n_layers
        if not -depth <= layer < depth:
            raise IndexError(f"layer {layer}: the model has {depth} layers, 0 to {depth - 1}")
        self.layer = layer % depth
        self.path = architecture.values_path(self.layer)
        self._block = architecture.block(self.layer)
        self._keys = architecture.keys(self.layer)
        self._gate = architecture.gate(self.layer)
        self._values = architecture.values(self.layer)

    # -- the matrices

    @property
    def values(self) -> Tensor:
        """V, (d_ffn, d_model): a view of the weights, whatever way round the module stores them."""
        return _rows_out(self._values) if stores_transposed(self._values) else _rows_out(self._values).T

    @property
    def keys(self) -> Tensor:
        """K (or U where the FFN is gated), (d_ffn, d_model): a view of the weights."""
        return self._input_matrix(self._keys, half=1)

    @property
    def gates(self) -> Tensor | None:
        """G, (d_ffn, d_model), of a gated FFN: a view of the weights. None for a plain one."""
        return None if self._gate is None else self._input_matrix(self._gate, half=0)

    @property
    def bias(self) -> Tensor | None:
        """b2, (d_model,), or None where the FFN has no such bias."""
        bias: Tensor | None = getattr(self._values, "bias", None)
        return None if bias is None else bias.detach()

    def read(self, coefficients: Tensor) -> Tensor:
        """What the memory answers to given coefficients: m V + b2, (..., d_ffn) -> (..., d_model)."""
        answer = coefficients.to(self.values) @ self.values
        return answer if self.bias is None else answer + self.bias

    @property
    def d_ffn(self) -> int:
        """The number of neurons (keys, values, coefficients) of the layer."""
        return self.values.shape[0]

    def place(self, neuron: int) -> tuple[int, int]:
        """A neuron's place: its layer, counted from the bottom, and its number.

        Raises:
            IndexError: the layer has no such neuron.
        """
        if not 0 <= neuron < self.d_ffn:
            raise IndexError(f"neuron {neuron}: layer {self.layer} has neurons 0 to {self.d_ffn - 1}")
        return self.layer, neuron

    @property
    def d_model(self) -> int:
        """The width of the residual stream."""
        return self.values.shape[1]

    @property
    def weight(self) -> nn.Parameter:
        """The parameter that stores V, in the module's own orientation."""
        return self._values.weight  # type: ignore[return-value]

    @property
    def transposed(self) -> bool:
        """Whether `weight` is V itself (Conv1D) rather than its transpose (Linear)."""
        return stores_transposed(self._values)

    @torch.no_grad()
    def add_to_values(self, delta: Tensor) -> None:
        """Adds `delta`, (d_ffn, d_model), to V in place.

        Raises:
            ValueError: `delta` has another shape.
        """
        if delta.shape != self.values.shape:
            raise ValueError(
                f"delta has shape {tuple(delta.shape)}, the values of layer {self.layer} {tuple(self.values.shape)}"
            )
        self.values.add_(delta.to(self.values))

    def _input_matrix(self, module: nn.Module, half: int) -> Tensor:
        weight = _rows_out(module)
        weight = weight.T if stores_transposed(module) else weight
        if self._gate is self._keys:  # one fused matrix: the gate's rows first, then the keys'
            weight = weight[half * self.d_ffn : (half + 1) * self.d_ffn]
        return weight

    # -- reading and changing a forward

    @contextmanager
    def capture(self, at: At = None) -> Iterator[Seen]:
        """Keeps the coefficients and the FFN output of the forwards inside the block (those of the last one)."""
        seen = Seen()

        def before(coefficients: Tensor) -> None:
            seen.coefficients = positions.take(coefficients, at)

        def after(output: Tensor) -> None:
            # A copy: some families (Falcon, Llama 4) go on to add to the FFN's output in place.
            seen.output = output.clone() if at is None else positions.take(output, at)

        with self._hooks(before, after):
            yield seen

    @contextmanager
    def add(self, delta: Tensor, at: At = None) -> Iterator[None]:
        """Adds `delta` to the FFN output at the chosen positions; shapes as in `positions.put`."""
        with self._hooks(after=lambda output: positions.add(output, at, delta)):
            yield

    @contextmanager
    def replace(self, output: Tensor, at: At = None) -> Iterator[None]:
        """Puts `output` in place of the FFN output at the chosen positions; shapes as in `positions.put`."""
        with self._hooks(after=lambda old: positions.put(old, at, output)):
            yield

    @contextmanager
    def through(self, change: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
        """Passes the whole FFN output, (batch, position, d_model), through a function; None leaves it as it is."""
        with self._hooks(after=change):
            yield

    @contextmanager
    def answer(self, change: Callable[[Tensor, Tensor], Tensor | None]) -> Iterator[None]:
        """Puts in place of the FFN output what a function makes of the coefficients and it; None leaves it as it is.

        The coefficients are (batch, position, d_ffn), the output and what takes its place (batch, position, d_model).
        """
        seen: list[Tensor] = []

        def before(coefficients: Tensor) -> None:
            seen[:] = [coefficients]

        with self._hooks(before, lambda output: change(seen.pop(), output)):
            yield

    @contextmanager
    def scale(self, factor: float | Tensor, at: At = None, neurons: Tensor | None = None) -> Iterator[None]:
        """Multiplies coefficients by `factor` at the chosen positions.

        Args:
            factor: a number, or a tensor broadcast over the chosen coefficients: (n or 1, d_ffn or 1) at n chosen
                positions, (batch or 1, position or 1, d_ffn or 1) at all of them.
            at: which positions.
            neurons: indices of the coefficients to scale, (k,), or None for all; with it, the last dimension of
                a tensor `factor` is k or 1.
        """

        def before(coefficients: Tensor) -> Tensor:
            chosen = positions.take(coefficients, at)
            by = torch.as_tensor(factor, dtype=chosen.dtype, device=chosen.device)
            if neurons is None:
                return positions.put(coefficients, at, chosen * by)
            which = neurons.to(chosen.device)
            factors = torch.ones_like(chosen)
            factors[..., which] = by.expand(*chosen.shape[:-1], len(which))
            return positions.put(coefficients, at, chosen * factors)

        with self._hooks(before):
            yield

    @contextmanager
    def _hooks(self, before: Any = None, after: Any = None) -> Iterator[None]:
        """Hooks on the values' module; `before` and `after` see (batch, position, width) and may return a new one."""
        shape: list[torch.Size] = []

        def block_input(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            shape[:] = [_hidden(args, kwargs).shape[:2]]

        def folded(tensor: Tensor) -> Tensor:
            # OPT flattens batch and position before its FFN.
            return tensor.view(*shape[0], -1) if tensor.ndim == 2 else tensor

        def pre_hook(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            new = before(folded(args[0]))
            return None if new is None else (new.view_as(args[0]), *args[1:])

        def post_hook(_module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            new = after(folded(output))
            return None if new is None else new.reshape(output.shape)

        with ExitStack() as stack:
            stack.callback(self._block.register_forward_pre_hook(block_input, with_kwargs=True).remove)
            if before is not None:
                stack.callback(self._values.register_forward_pre_hook(pre_hook).remove)
            if after is not None:
                stack.callback(self._values.register_forward_hook(post_hook).remove)
            yield


def _rows_out(module: nn.Module) -> Tensor:
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight.detach()


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A block's input state, which transformers passes by position or by name."""
    return args[0] if args else kwargs["hidden_states"]
