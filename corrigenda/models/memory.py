"""`FFNMemory`: the feed-forward network of one layer, seen as a key-value memory, the same for every family.

For the FFN's input x in R^d (Geva et al. 2021, "Transformer Feed-Forward Layers Are Key-Value Memories"):

    plain   m = f(x K^T + b1)               FFN(x) = m V + b2
    gated   m = f(x G^T) * (x U^T)          FFN(x) = m V

m in R^{d_ffn} are the coefficients, the rows of V (d_ffn x d) the values. Every reading and every change goes
through the module that holds V: its input are the coefficients and its output is FFN(x), in every family.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from corrigenda.errors import UnsupportedModelError
from corrigenda.models import positions
from corrigenda.models.architecture import Architecture, whole_number
from corrigenda.models.matrices import in_out, is_quantised, stores_transposed
from corrigenda.models.offloaded import require_here
from corrigenda.models.positions import At
from corrigenda.models.sites import Change, Site, SiteName, state_entering, through


class Capture:
    """What `FFNMemory.capture` saw in the last forward.

    Attributes:
        coefficients: m, (batch, position, d_ffn), or (n, d_ffn) at n chosen positions.
        output: FFN(x), (batch, position, d_model), or (n, d_model); None before a forward ran.
    """

    coefficients: Tensor
    output: Tensor

    @property
    def shares(self) -> Tensor:
        """What multiplies the values in the layer's answer: the coefficients; of an expert, times its weight."""
        return self.coefficients


class FFNMemory:
    """Keys, coefficients and values of one layer.

    Obtained from `LanguageModel.memory(layer)`; for a layer that is a mixture of experts it is a `MixtureMemory`, and
    for one of them (`LanguageModel.memory(layer, expert)`) an `ExpertMemory` (`corrigenda.models.experts`).
    The methods that change a forward (`add`, `replace`, `scale`) are context managers: the change holds inside the
    ``with`` block, is differentiable in what is put in, and is gone after it, also when the block raises. Where several
    are open at once they act in the order they were opened.

    Args:
        architecture: the model's parts.
        layer: 0 for the first block; negative numbers count from the end.

    Raises:
        IndexError: the model has no such layer.
        TypeError: it is no whole number.
    """

    def __init__(self, architecture: Architecture, layer: int) -> None:
        self.layer = architecture.numbered(layer)
        self.path = architecture.values_path(self.layer)
        self._architecture = architecture
        self._gate, self._keys, self._values = self._modules()

    def _modules(self) -> tuple[nn.Module | None, nn.Module, nn.Module]:
        """The modules that hold the gates, the keys and the values."""
        parts = self._architecture
        return parts.gate(self.layer), parts.keys(self.layer), parts.values(self.layer)

    # -- the matrices

    @property
    def values(self) -> Tensor:
        """V, (d_ffn, d_model): a view of the weights, whatever way round the module stores them."""
        weight = _rows_out(self._values, self.path)
        return weight if stores_transposed(self._values) else weight.T

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
        if is_quantised(self._values):
            answered: Tensor = self._values.forward(coefficients)
            return answered
        answer = coefficients.to(self.values) @ self.values
        return answer if self.bias is None else answer + self.bias

    def activate(self, inputs: Tensor) -> Tensor:
        """F of the layer's own network, at each number by itself.

        Raises:
            UnsupportedModelError: it is not known where this family keeps it.
        """
        activated: Tensor = self._architecture.activation(self.layer)(inputs)
        return activated

    @property
    def is_gated(self) -> bool:
        """Whether the layer's FFN is gated."""
        return self._gate is not None

    @property
    def has_key_bias(self) -> bool:
        """Whether what f reads has a bias."""
        return getattr(self._keys if self._gate is None else self._gate, "bias", None) is not None

    def norm(self) -> float:
        """The Frobenius norm of V."""
        return float(self.values.float().norm())

    @property
    def d_ffn(self) -> int:
        """The number of neurons (keys, values, coefficients) of the layer."""
        return in_out(self._values)[0]

    @property
    def width(self) -> int:
        """How many coefficients the layer's answer is linear in: d_ffn; of a mixture those of all experts."""
        return self.d_ffn

    @property
    def n_answering(self) -> int:
        """How many networks answer each token: one; of a mixture as many as the router chooses."""
        return 1

    def place(self, neuron: int) -> tuple[int, int]:
        """A neuron's place: its layer, counted from the bottom, and its number.

        Raises:
            IndexError: the layer has no such neuron.
            TypeError: it is no whole number.
        """
        neuron = whole_number(neuron, "a neuron")
        if not 0 <= neuron < self.d_ffn:
            raise IndexError(f"neuron {neuron}: layer {self.layer} has neurons 0 to {self.d_ffn - 1}")
        return self.layer, neuron

    @property
    def d_model(self) -> int:
        """The width of the residual stream."""
        return in_out(self._values)[1]

    @property
    def weight(self) -> Tensor:
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
        weight = _rows_out(module, f"the keys of layer {self.layer}")
        weight = weight.T if stores_transposed(module) else weight
        if self._gate is self._keys:  # one fused matrix: the gate's rows first, then the keys'
            weight = weight[half * self.d_ffn : (half + 1) * self.d_ffn]
        return weight

    # -- reading and changing a forward

    @contextmanager
    def capture(self, at: At = None) -> Iterator[Capture]:
        """Keeps the coefficients and the FFN output of the forwards inside the block (those of the last one)."""
        seen = Capture()

        def before(coefficients: Tensor) -> None:
            seen.coefficients = positions.take(coefficients, at)

        def after(output: Tensor) -> None:
            # A copy: some families (Falcon, Llama 4) go on to add to the FFN's output in place.
            seen.output = output.clone() if at is None else positions.take(output, at)

        with self._through("coefficients", before), self._through("ffn", after):
            yield seen

    def capture_key(self, at: At = None) -> AbstractContextManager[Capture]:
        """As `capture`; of a mixture the coefficients are then the key of the whole layer, which `read` answers."""
        return self.capture(at)

    def add(self, delta: Tensor, at: At = None) -> AbstractContextManager[None]:
        """Adds `delta` to the FFN output at the chosen positions; shapes as in `positions.put`."""
        return self._through("ffn", lambda output: positions.add(output, at, delta))

    def replace(self, output: Tensor, at: At = None) -> AbstractContextManager[None]:
        """Puts `output` in place of the FFN output at the chosen positions; shapes as in `positions.put`."""
        return self._through("ffn", lambda old: positions.put(old, at, output))

    def through(self, change: Change) -> AbstractContextManager[None]:
        """Passes the whole FFN output, (batch, position, d_model), through a function; None leaves it as it is."""
        return self._through("ffn", change)

    @contextmanager
    def answer(self, change: Callable[[Tensor, Tensor], Tensor | None]) -> Iterator[None]:
        """Puts in place of the FFN output what a function makes of the coefficients and it; None leaves it as it is.

        The coefficients are (batch, position, d_ffn), the output and what takes its place (batch, position, d_model).
        """
        seen: list[Tensor] = []

        def before(coefficients: Tensor) -> None:
            seen[:] = [coefficients]

        with self._through("coefficients", before), self._through("ffn", lambda output: change(seen.pop(), output)):
            yield

    @contextmanager
    def respond(self, change: Callable[[Tensor, Tensor], Tensor | None]) -> Iterator[None]:
        """As `answer`, with the FFN's input x, (batch, position, d_model), in the place of the coefficients."""
        seen: list[Tensor] = []

        def before(state: Tensor) -> None:
            seen[:] = [state]

        def after(output: Tensor) -> Tensor | None:
            return change(seen.pop().view(*output.shape[:-1], -1), output)

        with state_entering(self._keys, before), self._through("ffn", after):
            yield

    def scale(
        self, factor: float | Tensor, at: At | Callable[[], At] = None, neurons: Tensor | None = None
    ) -> AbstractContextManager[None]:
        """Multiplies coefficients by `factor` at the chosen positions.

        Args:
            factor: a number, or a tensor broadcast over the chosen coefficients: (n or 1, d_ffn or 1) at n chosen
                positions, (batch or 1, position or 1, d_ffn or 1) at all of them.
            at: which positions; a function is asked for them in each forward.
            neurons: indices of the coefficients to scale, (k,), or None for all; with it, the last dimension of
                a tensor `factor` is k or 1.
        """

        def before(coefficients: Tensor) -> Tensor:
            where = at() if callable(at) else at
            if neurons is None:
                return positions.scale(coefficients, where, factor)
            chosen = positions.take(coefficients, where)
            by = torch.as_tensor(factor, dtype=chosen.dtype, device=chosen.device)
            which = neurons.to(chosen.device)
            factors = torch.ones_like(chosen)
            factors[..., which] = by.expand(*chosen.shape[:-1], len(which))
            return positions.scale(coefficients, where, factors)

        return self._through("coefficients", before)

    def drive(
        self, amounts: Tensor, at: At | Callable[[], At], neurons: Tensor, add: bool = False
    ) -> AbstractContextManager[None]:
        """Sets chosen coefficients to given amounts, or adds these to them, at the chosen positions.

        Args:
            amounts: (k,), one for each of the neurons.
            at: as in `scale`.
            neurons: indices of the coefficients, (k,), each once.
            add: whether to add the amounts to what the coefficients are.
        """

        def before(coefficients: Tensor) -> Tensor:
            where = at() if callable(at) else at
            chosen, which = positions.take(coefficients, where).clone(), neurons.to(coefficients.device)
            by = amounts.to(chosen)
            chosen[..., which] = chosen[..., which] + by if add else by.expand(*chosen.shape[:-1], len(which))
            return positions.put(coefficients, where, chosen)

        return self._through("coefficients", before)

    def _through(self, site: SiteName, change: Change) -> AbstractContextManager[None]:
        return through(self._architecture, Site(site, self.layer), change)


def _rows_out(module: nn.Module, path: str) -> Tensor:
    if is_quantised(module):
        kept = str(module.weight.dtype).removeprefix("torch.")
        raise UnsupportedModelError(
            f"this matrix is quantised ({type(module).__name__}, {kept}): it can be neither read nor written, only "
            "what runs through it; use an editor that works beside the weights (grace, context), or load the model "
            "unquantised"
        )
    weight: Tensor = module.weight  # type: ignore[assignment]
    require_here(weight, path)
    return weight.detach()
