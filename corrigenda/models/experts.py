"""Memories of a layer that is a mixture of experts: `ExpertMemory` of one expert, `MixtureMemory` of the whole layer.

The matrices of the former are views of the parameter that holds all experts; the latter has no one matrix of values.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Literal, NoReturn

import torch
from torch import Tensor, nn

from corrigenda.errors import UnsupportedModelError
from corrigenda.models import positions
from corrigenda.models.architecture import Architecture, whole_number
from corrigenda.models.memory import Capture, FFNMemory
from corrigenda.models.positions import At
from corrigenda.models.sites import Change, Site, SiteName, through

Expert = int | Literal["shared"] | None


class ExpertCapture(Capture):
    """What `ExpertMemory.capture` saw in the last forward.

    Attributes:
        coefficients: m_e, (batch, position, d_ffn) or (n, d_ffn); zeros at positions that the expert was not chosen
            for.
        output: FFN_e(x), before it is weighted, (batch, position, d_model) or (n, d_model); zeros likewise.
        weights: with which weight the expert answered, (batch, position) or (n,); 0 where it was not chosen.
    """

    weights: Tensor

    @property
    def shares(self) -> Tensor:
        """w_e m_e: what multiplies the expert's values in the layer's answer."""
        return self.weights[..., None] * self.coefficients


class ExpertMemory(FFNMemory):
    """Keys, coefficients and values of one expert of a layer.

    Args:
        architecture: the model's parts.
        layer: 0 for the first block; negative numbers count from the end.
        expert: its number.

    Raises:
        IndexError: there is no such layer or expert.
        TypeError: one of them is no whole number.
        UnsupportedModelError: the layer is no mixture.
    """

    def __init__(self, architecture: Architecture, layer: int, expert: int) -> None:
        self.layer = architecture.numbered(layer)
        self.expert = whole_number(expert, "an expert")
        self.path = architecture.values_path(self.layer)
        self._architecture = architecture
        self._experts = architecture.require_experts(self.layer)
        if not 0 <= self.expert < len(self._experts):
            raise IndexError(f"expert {expert}: layer {self.layer} has experts 0 to {len(self._experts) - 1}")

    @property
    def d_ffn(self) -> int:
        """The number of neurons of the expert."""
        return self.values.shape[0]

    @property
    def d_model(self) -> int:
        """The width of the residual stream."""
        return self.values.shape[1]

    @property
    def values(self) -> Tensor:
        """V_e, (d_ffn, d_model): a view of the weights."""
        return self._experts.values(self.expert)

    @property
    def keys(self) -> Tensor:
        """U_e, (d_ffn, d_model): a view of the weights."""
        return self._experts.keys(self.expert)

    @property
    def gates(self) -> Tensor:
        """G_e, (d_ffn, d_model): a view of the weights."""
        return self._experts.gates(self.expert)

    @property
    def bias(self) -> Tensor | None:
        """b_e, (d_model,), or None."""
        return self._experts.bias(self.expert)

    def read(self, coefficients: Tensor) -> Tensor:
        """What the expert answers to given coefficients: m V_e + b_e, (..., d_ffn) -> (..., d_model)."""
        return self._experts.read(self.expert, coefficients.to(self.values))

    @property
    def weight(self) -> Tensor:
        """What stores V_e in the parameter that holds all experts': a view, in the module's own orientation."""
        return self._experts.weight(self.expert)

    @property
    def transposed(self) -> bool:
        """Whether `weight` is V_e itself and not its transpose."""
        return self._experts.transposed

    @contextmanager
    def capture(self, at: At = None) -> Iterator[ExpertCapture]:
        """Keeps the coefficients, the output and the weight of this expert in the forwards inside the block."""
        seen = ExpertCapture()

        def before(coefficients: Tensor) -> None:
            seen.coefficients = positions.take(coefficients, at)

        def after(output: Tensor) -> None:
            seen.output = positions.take(output, at)

        def chosen(weights: Tensor) -> None:
            seen.weights = positions.take(weights[..., self.expert, None], at)[..., 0]

        router = Site("router", self.layer)
        with (
            through(self._architecture, router, chosen),
            self._through("coefficients", before),
            self._through("ffn", after),
        ):
            yield seen

    def _through(self, site: SiteName, change: Change) -> AbstractContextManager[None]:
        return through(self._architecture, Site(site, self.layer, self.expert), change)


class SharedMemory(FFNMemory):
    """Keys, coefficients and values of the expert that every token of a layer goes through.

    Its output is that before the layer weights it (Qwen-MoE has a gate of its own for it).
    """

    def _modules(self) -> tuple[nn.Module | None, nn.Module, nn.Module]:
        return self._architecture.shared_expert(self.layer)

    def _through(self, site: SiteName, change: Change) -> AbstractContextManager[None]:
        return through(self._architecture, Site(site, self.layer, "shared"), change)


class MixtureCapture(Capture):
    """What `MixtureMemory.capture` saw in the last forward: only the output of all experts together, weighted.

    It is (batch, position, d_model) or (n, d_model).
    """

    def __init__(self, refuse: str) -> None:
        self._refuse = refuse

    @property
    def coefficients(self) -> Tensor:  # type: ignore[override]
        """There are none of the whole layer. Raises UnsupportedModelError: always."""
        raise UnsupportedModelError(self._refuse)


class KeyCapture(Capture):
    """What `MixtureMemory.capture_key` saw in the last forward: the layer's output as a whole, and of each expert."""

    def __init__(self, whole: Capture, each: Sequence[ExpertCapture]) -> None:
        self._whole, self._each = whole, each

    @property
    def output(self) -> Tensor:  # type: ignore[override]
        """Of all experts together, (batch, position, d_model) or (n, d_model)."""
        return self._whole.output

    @property
    def coefficients(self) -> Tensor:  # type: ignore[override]
        """The key, (..., width): each expert's w_e m_e; the weights w_e; and what else the layer answers."""
        weights = torch.stack([seen.weights for seen in self._each], -1)
        experts = sum((seen.weights[..., None] * seen.output for seen in self._each), torch.zeros_like(self.output))
        return torch.cat([*(seen.shares for seen in self._each), weights, self.output - experts], -1)


class MixtureMemory(FFNMemory):
    """The whole feed-forward network of a layer that is a mixture of experts.

    What it answers can be read (`capture`) and changed (`add`, `replace`, `through`). It has no one matrix of values
    and no coefficients: what asks for them raises `UnsupportedModelError`. But its answer is linear in the values of
    all experts, with a *key*: w_e m_e of every expert side by side. So that `read` can answer it, a key (`capture_key`)
    ends with the weights w_e, which multiply the biases, and with what else the layer answers (a shared expert).
    """

    def __init__(self, architecture: Architecture, layer: int) -> None:
        self.layer = architecture.numbered(layer)
        self.path = architecture.values_path(self.layer)
        self._architecture = architecture
        self._experts = architecture.require_experts(self.layer)
        self.n_experts = len(self._experts)

    @property
    def d_model(self) -> int:
        """The width of the residual stream."""
        return self._experts.values(0).shape[1]

    @property
    def width(self) -> int:
        """How many coefficients the layer's answer is linear in: those of all experts. A key begins with them."""
        return self.block(self.n_experts - 1).stop

    @property
    def n_answering(self) -> int:
        """How many experts the router chooses for a token; 1 where the configuration does not say it."""
        return int(getattr(self._architecture.model.config.get_text_config(), "num_experts_per_tok", None) or 1)

    def block(self, expert: int) -> slice:
        """Where an expert's w_e m_e stand in a key."""
        d_ffn = self._experts.values(expert).shape[0]
        return slice(expert * d_ffn, (expert + 1) * d_ffn)

    @contextmanager
    def capture_key(self, at: At = None) -> Iterator[Capture]:
        """Keeps the output and, as its coefficients, the key of the forwards inside the block; all experts are run."""
        with ExitStack() as stack:
            memories = [ExpertMemory(self._architecture, self.layer, expert) for expert in range(self.n_experts)]
            each = [stack.enter_context(memory.capture(at)) for memory in memories]
            yield KeyCapture(stack.enter_context(self.capture(at)), each)

    def read(self, coefficients: Tensor) -> Tensor:
        """What the layer answers to a key, (..., width) -> (..., d_model)."""
        ends = self.width
        weights, rest = coefficients[..., ends : ends + self.n_experts], coefficients[..., ends + self.n_experts :]
        answer = rest.to(self._experts.values(0))
        for expert in range(self.n_experts):
            part = coefficients[..., self.block(expert)].to(answer)
            if not bool(part.any() or weights[..., expert].any()):
                continue  # nobody asked it
            answer = answer + part @ self._experts.values(expert)
            bias = self._experts.bias(expert)
            if bias is not None:
                answer = answer + weights[..., expert, None].to(answer) * bias
        return answer

    def norm(self) -> float:
        """The Frobenius norm of the values of all experts together."""
        norms = [float(self._experts.values(expert).float().norm()) for expert in range(self.n_experts)]
        return float(torch.tensor(norms, dtype=torch.float64).norm())

    @contextmanager
    def capture(self, at: At = None) -> Iterator[Capture]:
        """Keeps the output of the forwards inside the block (of the last one)."""
        seen = MixtureCapture(self._said())

        def after(output: Tensor) -> None:
            seen.output = output.clone() if at is None else positions.take(output, at)

        with self._through("ffn", after):
            yield seen

    def _through(self, site: SiteName, change: Change) -> AbstractContextManager[None]:
        if site == "coefficients":
            self._refuse()
        return super()._through(site, change)

    def _said(self) -> str:
        return (
            f"layer {self.layer} is a mixture of {self.n_experts} experts, not one key-value memory: ask one of them "
            f"(lm.memory({self.layer}, expert=0)); of the editors, ROME, MEMIT and EMMET write "
            "into those that answer"
        )

    def _refuse(self) -> NoReturn:
        raise UnsupportedModelError(self._said())

    # What there is none of in the whole layer.
    d_ffn = values = keys = gates = bias = weight = transposed = property(_refuse)


def memory_of(architecture: Architecture, layer: int, expert: Expert = None) -> FFNMemory:
    """The memory of a layer, or of an expert in it; see `BareModel.memory`.

    Raises:
        IndexError: there is no such layer or expert.
        TypeError: one of them is no whole number.
        UnsupportedModelError: an expert of a layer that has none.
    """
    layer = architecture.numbered(layer)
    if expert == "shared":
        return SharedMemory(architecture, layer)
    if expert is not None:
        return ExpertMemory(architecture, layer, expert)
    return MixtureMemory(architecture, layer) if architecture.experts(layer) else FFNMemory(architecture, layer)
