"""`Decomposition`: everything that one position of a prompt's residual stream is the sum of, taken in one forward.

    last state = embedding + sum over layers (what attention adds + what the FFN adds)

In an encoder-decoder attention to the encoder's states adds a third part.
What attention adds is the sum of its heads, what the FFN adds the sum of its memories m_i v_i, and biases. In families
that put a norm behind attention or the FFN (Gemma 2 and 3, OLMo 2) each part goes through that norm with the scale
that the whole had: with it a norm is linear.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from corrigenda import LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.interventions import Read, Reading, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.families import name_of
from corrigenda.models.matrices import stores_transposed
from corrigenda.models.sites import Change, Site, SiteName, state_entering
from locate.lens.words import LARGE, norm_weight, precision, precision_of
from locate.question import require_numbers


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm with the scale that it had for one state: linear, but for its shift.

    norm(x) = sum over parts p of x of `gain` * (p - mean(p)) + `shift`, without the mean for an RMSNorm.

    Attributes:
        gain: gamma over the scale, (d_model,).
        shift: beta, (d_model,).
        centres: whether the mean is taken off.
    """

    gain: Tensor
    shift: Tensor
    centres: bool

    def pull(self, direction: Tensor) -> Tensor:
        """The direction before the norm that does what one, (..., d_model), does behind it."""
        before = self.gain * direction
        return before - before.mean(-1, keepdim=True) if self.centres else before


def frozen(norm: nn.Module, state: Tensor) -> FrozenNorm:
    """A norm, linear as it is at one state, (d_model,)."""
    kind = precision_of(state.dtype)
    with torch.no_grad():
        result, shift = norm(state).to(kind), norm(torch.zeros_like(state)).to(kind)
        gamma = norm_weight(norm, len(state)).to(state.device, kind)
        flat = norm(torch.full_like(state, LARGE)).to(kind) - shift
    centres = float(flat.abs().max()) < 0.5 * float(gamma.abs().max())
    x, y = state.to(kind), result - shift
    if centres:
        x = x - x.mean()
    # A norm may round (many work in float32 whatever the model's precision). So each dimension's own quotient.
    size = (y @ (gamma * x)) / (gamma * x).square().sum()
    return FrozenNorm(torch.where(x == 0, gamma * size, y / torch.where(x == 0, 1, x)), shift, centres)


@dataclass(frozen=True, eq=False)
class LayerParts:
    """What one layer adds at one position.

    Attributes:
        before: the residual stream that enters the layer, (d_model,).
        attention: what self-attention gives, (d_model,).
        heads: what enters its output projection, (head, head size); None where that is not known.
        coefficients: m, (d_ffn,).
        ffn: what the FFN gives, (d_model,).
        after: the residual stream behind the layer, (d_model,).
        attention_norm: the norm between `attention` and the stream; None where there is none.
        ffn_norm: the one between `ffn` and the stream.
        cross: what attention to an encoder's states adds, (d_model,); None in a model without an encoder.
    """

    before: Tensor
    attention: Tensor
    heads: Tensor | None
    coefficients: Tensor
    ffn: Tensor
    after: Tensor
    attention_norm: FrozenNorm | None
    ffn_norm: FrozenNorm | None
    cross: Tensor | None = None

    def attention_direction(self, direction: Tensor) -> Tensor:
        """For a direction in the stream, (..., d_model), the one that says the same of `attention`."""
        return direction if self.attention_norm is None else self.attention_norm.pull(direction)

    def ffn_direction(self, direction: Tensor) -> Tensor:
        """For a direction in the stream, (..., d_model), the one that says the same of `ffn` and the values."""
        return direction if self.ffn_norm is None else self.ffn_norm.pull(direction)


@dataclass(frozen=True, eq=False)
class Decomposition:
    """One position of one prompt: what each layer adds, and the model's logits, (vocabulary,)."""

    layers: tuple[LayerParts, ...]
    logits: Tensor

    @property
    def embedding(self) -> Tensor:
        """What enters the first layer, (d_model,)."""
        return self.layers[0].before

    @property
    def last(self) -> Tensor:
        """The last state, which enters the final norm, (d_model,)."""
        return self.layers[-1].after


@torch.no_grad()
def parts_of(lm: LanguageModel, ids: Sequence[int], position: int = -1) -> Decomposition:
    """Runs a prompt of a decoder once and takes its parts at one position; negative ones count from the end.

    Raises IndexError: the prompt has no such position; UnsupportedModelError: a layer adds something else than its
    attention and its FFN, or is a mixture of experts; ValueError: the model gives no numbers.
    """
    [parts] = parts_of_each(lm, [ids], [position])
    return parts


@torch.no_grad()
def parts_of_each(lm: LanguageModel, rows: Sequence[Sequence[int]], positions: Sequence[int]) -> list[Decomposition]:
    """As `parts_of`, of several prompts in one forward, each at a position of its own."""
    require_memories(lm, range(lm.n_layers))
    places = [position_in(len(ids), position) for ids, position in zip(rows, positions, strict=True)]
    batch = lm.batch(rows)
    at = torch.tensor(places, device=batch.lengths.device)
    names: list[SiteName] = ["residual_before", "attention", "coefficients", "ffn", "block"]
    if lm.architecture.family.attention_output is not None:
        names.append("heads")
    if lm.architecture.has_encoder:
        names.append("cross_attention")
    with ExitStack() as stack:
        seen = [
            {name: stack.enter_context(intervene(lm, Site(name, layer), Read(), at)) for name in names}
            for layer in range(lm.n_layers)
        ]
        passed = [stack.enter_context(norms_between(lm, layer)) for layer in range(lm.n_layers)]
        logits = forward_logits(lm, batch, at).to(precision(lm))
    for ids, said in zip(rows, logits, strict=True):
        require_numbers(lm, lm.text(ids), [said])
    return [
        Decomposition(
            tuple(_layer(lm, layer, seen[layer], passed[layer], row, place) for layer in range(lm.n_layers)), said
        )
        for row, (place, said) in enumerate(zip(places, logits, strict=True))
    ]


def require_memories(lm: LanguageModel, layers: Iterable[int]) -> None:
    """Checks that layers have one key-value memory each, and so one matrix of values.

    Raises:
        UnsupportedModelError: one of them is a mixture of experts.
    """
    for layer in layers:
        _ = lm.memory(layer).values  # a mixture says that it has none


def position_in(length: int, position: int) -> int:
    """A position of a prompt of so many tokens, counted from its beginning.

    Raises:
        IndexError: it has no such position.
    """
    if not -length <= position < length:
        raise IndexError(f"position {position}: the prompt has {length} tokens, 0 to {length - 1}")
    return position % length


def rows_of(module: nn.Module) -> Tensor:
    """A matrix module's weight with what it takes down and what it gives across, whatever way it stores it."""
    weight: Tensor = module.weight.detach()  # type: ignore[operator]
    return weight if stores_transposed(module) else weight.T


@contextmanager
def norms_between(lm: LanguageModel, layer: int) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    """Keeps which norms of a block were given which state, (batch, position, width), in the forwards inside.

    None where the block adds what its parts give as it is.
    """
    given: list[tuple[nn.Module, Tensor]] = []

    def keep(module: nn.Module) -> Change:
        def kept(state: Tensor) -> None:
            given.append((module, state))

        return kept

    with ExitStack() as stack:
        block = lm.architecture.block(layer)
        for name, module in () if lm.architecture.adds_plainly else block.named_children():
            if "norm" in f"{name} {type(module).__name__}".lower():
                stack.enter_context(state_entering(module, keep(module)))
        yield given


def norm_behind(passed: Sequence[tuple[nn.Module, Tensor]], output: Tensor, row: int, place: int) -> nn.Module | None:
    """Which of a block's norms was given an output, (d_model,), at a place of a row of the batch; None for none."""
    given = (norm for norm, state in passed if state.ndim == 3 and torch.equal(state[row, place], output))
    return next(given, None)


def _layer(
    lm: LanguageModel,
    layer: int,
    seen: dict[SiteName, Reading],
    passed: Sequence[tuple[nn.Module, Tensor]],
    row: int,
    place: int,
) -> LayerParts:
    """A layer's parts at a place of a row of the batch."""
    kind = precision(lm)

    def behind(output: Tensor) -> FrozenNorm | None:
        norm = norm_behind(passed, output, row, place)
        return None if norm is None else frozen(norm, output)

    value = {name: one.value[row] for name, one in seen.items()}
    norms = behind(value["attention"]), behind(value["ffn"])
    parts = LayerParts(
        before=value["residual_before"].to(kind),
        attention=value["attention"].to(kind),
        heads=value["heads"].to(kind) if "heads" in value else None,
        coefficients=value["coefficients"].to(kind),
        ffn=value["ffn"].to(kind),
        after=value["block"].to(kind),
        attention_norm=norms[0],
        ffn_norm=norms[1],
        cross=value["cross_attention"].to(kind) if "cross_attention" in value else None,
    )
    if _error(parts) <= _rounding(lm, parts):
        return parts
    scaled = _scaled(parts)
    if _error(scaled) <= _rounding(lm, parts):
        return scaled
    raise UnsupportedModelError(
        f"{name_of(lm.model)}: what layer {layer} adds is not what its attention and its FFN give (off by "
        f"{_error(parts):.2g}); another part lies between, so nothing can be attributed to these"
    )


def _scaled(parts: LayerParts) -> LayerParts:
    """The parts with a factor before attention's output and one before the FFN's, as some families have (Granite).

    The two that come nearest to what the layer adds; whether they are it is for the caller to see.
    """
    outputs = torch.stack(_added(parts), 1).double()
    factors = torch.linalg.lstsq(outputs.cpu(), (parts.after - parts.before).double().cpu()[:, None]).solution[:, 0]
    norms = []
    for factor, norm in zip(factors.tolist(), (parts.attention_norm, parts.ffn_norm), strict=True):
        norm = norm or FrozenNorm(torch.ones_like(parts.after), torch.zeros_like(parts.after), False)
        norms.append(FrozenNorm(norm.gain * factor, norm.shift * factor, norm.centres))
    return replace(parts, attention_norm=norms[0], ffn_norm=norms[1])


def _error(parts: LayerParts) -> float:
    """By how much the parts' sum is not what stands behind the layer."""
    cross = 0 if parts.cross is None else parts.cross
    return float((parts.before + cross + sum(_added(parts)) - parts.after).abs().max())


def _added(parts: LayerParts) -> tuple[Tensor, Tensor]:
    """What attention and the FFN add to the stream, each (d_model,)."""
    return _through(parts.attention_norm, parts.attention), _through(parts.ffn_norm, parts.ffn)


def _rounding(lm: LanguageModel, parts: LayerParts) -> float:
    """By how much two sums of such numbers may differ in the model's precision."""
    cross = parts.before if parts.cross is None else parts.cross
    sizes = (part.abs().max() for part in (parts.before, cross, *_added(parts), parts.after))
    return 16 * torch.finfo(lm.dtype).eps * float(max(sizes))


def _through(norm: FrozenNorm | None, output: Tensor) -> Tensor:
    if norm is None:
        return output
    return norm.gain * (output - output.mean() if norm.centres else output) + norm.shift
