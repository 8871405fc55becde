"""`unfold`: the FFNs of a model as cross-attention to an implicit knowledge base.

The construction is exact. One entry stands for the i-th neuron of each of the layers, and holds, layer after layer, all
that the layer knows of it, side by side:

    E_i = [ k_i | threshold | v_i ]                                   plain
    E_i = [ g_i | threshold | u_i | threshold | v_i ]                 gated (first the gate, then the factor)

Every projection selects its part: W_K the columns of the keys, b the column of the threshold, W_V the columns of the
values; W_Q is sqrt(d_k) times the identity, with d_k = d_model. So E is shared by the layers and each has its own view
of it, as in the paper. Where a layer has fewer neurons than another, its part of the remaining entries is zero: a
value of zero answers nothing, whatever its coefficient.
"""

import itertools
import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from corrigenda.edits.weights import memories_of
from corrigenda.errors import UnsupportedModelError
from corrigenda.knowledge.cross_attention import Activation, CrossAttention, Match
from corrigenda.models.bare import BareModel
from corrigenda.models.memory import FFNMemory


def unfold(lm: BareModel, layers: Collection[int]) -> dict[int, CrossAttention]:
    """The FFNs of some layers, by layer, as cross-attention to entries that they share; in float32.

    Of the weights as they are now it computes what lies between the input of the layer's keys and the output of its
    values. Negative layers count from the end. Raises IndexError: the model has no such layer; UnsupportedModelError:
    which activation a layer uses is not known; ValueError: a layer is named twice, or there is none.
    """
    memories = {memory.layer: memory for memory in memories_of(lm, layers).values()}
    if not memories:
        raise ValueError("unfold needs at least one layer, got none")
    parts = {layer: _parts(lm, memory) for layer, memory in memories.items()}
    blocks = [block for layer in memories for block in parts[layer].values()]
    entries = torch.zeros(max(map(len, blocks)), sum(block.shape[1] for block in blocks), device=blocks[0].device)
    ends = list(itertools.accumulate(block.shape[1] for block in blocks))
    starts = dict(zip(((layer, name) for layer in memories for name in parts[layer]), [0, *ends], strict=False))
    for (layer, name), start in starts.items():
        block = parts[layer][name]
        entries[: len(block), start : start + block.shape[1]] = block
    return {
        layer: _layer(lm, memory, entries, {name: starts[layer, name] for name in parts[layer]})
        for layer, memory in memories.items()
    }


def _layer(lm: BareModel, memory: FFNMemory, entries: Tensor, starts: Mapping[str, int]) -> CrossAttention:
    def select(name: str, width: int) -> Tensor:
        """A projection, (d_E, width), that picks out `width` columns of the entries."""
        projection = entries.new_zeros(entries.shape[1], width)
        projection[starts[name] : starts[name] + width] = torch.eye(width, device=entries.device)
        return projection

    def match(keys: str) -> Match:
        d_k = memory.d_model
        query = math.sqrt(d_k) * torch.eye(d_k, device=entries.device)
        return Match(query, select(keys, d_k), select(f"{keys} threshold", 1)[:, 0])

    value, bias = select("values", memory.d_model), memory.bias
    bias = None if bias is None else bias.float()
    activation = activation_of(lm, memory.layer)
    if memory.gates is None:
        return CrossAttention(entries, match("keys"), value, bias, activation)
    return CrossAttention(entries, match("gates"), value, bias, activation, match("keys"))


def _parts(lm: BareModel, memory: FFNMemory) -> dict[str, Tensor]:
    """What the entries hold for one layer: by name columns (d_ffn, width), in order."""
    architecture, layer = lm.architecture, memory.layer
    parts = {}
    if memory.gates is not None:
        gate = architecture.gate(layer)
        assert gate is not None
        parts["gates"] = memory.gates.float()
        parts["gates threshold"] = _thresholds(gate, memory.d_ffn, first=True)
    parts["keys"] = memory.keys.float()
    parts["keys threshold"] = _thresholds(architecture.keys(layer), memory.d_ffn, first=False)
    parts["values"] = memory.values.float()
    return parts


def _thresholds(module: nn.Module, d_ffn: int, first: bool) -> Tensor:
    """b1, (d_ffn, 1); zeros where the module has none. Of a fused matrix the gate's come first, then the keys'."""
    bias: Tensor | None = getattr(module, "bias", None)
    if bias is None:
        weight: Tensor = module.weight  # type: ignore[assignment]
        return weight.new_zeros(d_ffn, 1, dtype=torch.float32)
    return (bias[:d_ffn] if first else bias[-d_ffn:]).detach().float()[:, None]


def activation_of(lm: BareModel, layer: int) -> Activation:
    """The activation f of a layer's FFN: the one module of its block, without the attention, that has no weights.

    Raises:
        UnsupportedModelError: there is none, or they are of several kinds.
    """
    block = lm.architecture.block(layer)
    attention = set(lm.architecture.attention(layer).modules())
    found: dict[type[nn.Module], nn.Module] = {
        type(module): module
        for module in block.modules()
        if module not in attention
        and not isinstance(module, (nn.Dropout, nn.Identity))
        and "norm" not in type(module).__name__.lower()  # OLMo's has no weights
        and not any(True for _ in itertools.chain(module.children(), module.parameters(), module.buffers()))
    }
    if len(found) != 1:
        names = ", ".join(kind.__name__ for kind in found) or "none"
        raise UnsupportedModelError(
            f"{lm.name}: the activation of layer {layer}'s feed-forward network is not known (its block has these "
            f"modules without weights: {names}), so it cannot be unfolded"
        )
    [activation] = found.values()
    return activation
