"""Where a model family keeps its parts: one table entry a family.

Every other file asks for a part by what it *is* (the blocks, the value matrix) and never by a module's name.
To add a family, add one line to `FAMILIES`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D


class UnsupportedModelError(ValueError):
    """A model in which the parts that Corrigenda works on could not be found; the message says which."""


@dataclass(frozen=True)
class Family:
    """Dotted paths to a family's parts, from the model (`blocks`, `final_norm`) or from a block (the others).

    Attributes:
        blocks: the list of transformer blocks.
        keys: the FFN's first matrix; the "up" matrix U where the FFN is gated.
        values: the FFN's second matrix V: its input are the coefficients, its output is the FFN's output.
        attention: the module whose (first) output is what self-attention adds to the residual stream: the attention
            itself, or its last matrix where the attention module adds the residual by itself.
        attention_output: the attention's output projection, whose input are the heads' results side by side; None
            where that is not known, and then nothing can be asked of single heads.
        gate: the gate matrix G of a gated FFN. The same path as `keys` says that one fused matrix holds G, then U.
        final_norm: the norm before the unembedding, if there is one.
        head: a module between `final_norm` and the vocabulary that acts on each position alone (masked models),
            where the positions whose logits are wanted can be picked out before the large product.
        causal: whether a position sees only itself and earlier ones.
        adds_plainly: whether the FFN's output joins the residual stream as it is, and not through a norm.
    """

    blocks: str
    keys: str
    values: str
    attention: str
    attention_output: str | None = None
    gate: str | None = None
    final_norm: str | None = None
    head: str | None = None
    causal: bool = True
    adds_plainly: bool = True


_LLAMA = Family(
    blocks="model.layers",
    keys="mlp.up_proj",
    gate="mlp.gate_proj",
    values="mlp.down_proj",
    attention="self_attn",
    attention_output="self_attn.o_proj",
    final_norm="model.norm",
)
_GPT2 = Family(
    blocks="transformer.h",
    keys="mlp.c_fc",
    values="mlp.c_proj",
    attention="attn",
    attention_output="attn.c_proj",
    final_norm="transformer.ln_f",
)

FAMILIES: dict[str, Family] = {
    "bert": Family(
        blocks="bert.encoder.layer",
        keys="intermediate.dense",
        values="output.dense",
        attention="attention.output.dense",
        attention_output="attention.output.dense",
        head="cls",
        causal=False,
        adds_plainly=False,
    ),
    "bloom": replace(
        _GPT2,
        keys="mlp.dense_h_to_4h",
        values="mlp.dense_4h_to_h",
        attention="self_attention.dense",
        attention_output="self_attention.dense",
    ),
    "gemma2": replace(_LLAMA, adds_plainly=False),
    "gemma3_text": replace(_LLAMA, adds_plainly=False),
    "gpt2": _GPT2,
    "gpt_neo": replace(_GPT2, attention_output="attn.attention.out_proj"),
    "gpt_neox": Family(
        blocks="gpt_neox.layers",
        keys="mlp.dense_h_to_4h",
        values="mlp.dense_4h_to_h",
        attention="attention",
        attention_output="attention.dense",
        final_norm="gpt_neox.final_layer_norm",
    ),
    "gptj": replace(_GPT2, keys="mlp.fc_in", values="mlp.fc_out", attention_output="attn.out_proj"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "olmo2": replace(_LLAMA, adds_plainly=False),
    "opt": Family(
        blocks="model.decoder.layers",
        keys="fc1",
        values="fc2",
        attention="self_attn",
        attention_output="self_attn.out_proj",
        final_norm="model.decoder.final_layer_norm",
    ),
    "phi3": replace(_LLAMA, keys="mlp.gate_up_proj", gate="mlp.gate_up_proj"),
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
}
"""Families by transformers' `config.model_type`."""


class Architecture:
    """The parts of one model, found through its family's table entry.

    Args:
        model: a causal or masked language model.
        family: the entry to use; by default that of `model.config.model_type`, else what `inspect_family` finds.

    Raises:
        UnsupportedModelError: a part is missing; the message names the part, the path tried and what to do.
    """

    def __init__(self, model: PreTrainedModel, family: Family | None = None) -> None:
        self.model = model
        self.family = family or FAMILIES.get(model.config.model_type) or inspect_family(model)
        blocks = self._part(model, "blocks", self.family.blocks)
        if not isinstance(blocks, nn.ModuleList) or len(blocks) == 0:
            raise UnsupportedModelError(f"{_name(model)}: '{self.family.blocks}' is not a list of blocks")
        self.blocks: nn.ModuleList = blocks
        for layer in range(len(blocks)):
            self.values(layer), self.keys(layer), self.attention(layer)

    @property
    def n_layers(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    def numbered(self, layer: int) -> int:
        """A layer counted from the bottom; negative numbers count from the end.

        Raises:
            IndexError: the model has no such layer.
        """
        if not -self.n_layers <= layer < self.n_layers:
            raise IndexError(f"layer {layer}: the model has {self.n_layers} layers, 0 to {self.n_layers - 1}")
        return layer % self.n_layers

    def block(self, layer: int) -> nn.Module:
        """The transformer block of a layer."""
        return self.blocks[layer]

    def attention(self, layer: int) -> nn.Module:
        """The module whose (first) output is what self-attention adds to the residual stream."""
        return self._part(self.blocks[layer], "attention", self.family.attention)

    def attention_output(self, layer: int) -> nn.Module:
        """The attention's output projection, whose input are the heads' results side by side.

        Raises:
            UnsupportedModelError: the family does not say where it is.
        """
        if self.family.attention_output is None:
            raise UnsupportedModelError(
                f"{_name(self.model)}: where its attention's output projection is, is not known, so nothing can be "
                "asked of single heads; give its path as `attention_output` of a `Family` (load(..., family=Family(...)"
                ")) or add it to corrigenda/models/architecture.py"
            )
        return self._matrix(layer, "attention_output", self.family.attention_output)

    def n_heads(self, layer: int) -> int:
        """The number of attention heads of a layer.

        Raises:
            UnsupportedModelError: the configuration does not say it, or it does not fit the output projection.
        """
        width = _in_out(self.attention_output(layer))[0]
        n_heads = getattr(self.model.config.get_text_config(), "num_attention_heads", None)
        if not isinstance(n_heads, int) or width % n_heads:
            raise UnsupportedModelError(
                f"{_name(self.model)}: num_attention_heads={n_heads!r} does not divide the {width} inputs of layer "
                f"{layer}'s attention output"
            )
        return n_heads

    @property
    def embeddings(self) -> nn.Module:
        """The tokens' embedding."""
        return self.model.get_input_embeddings()

    def ffn(self, layer: int) -> nn.Module | None:
        """The module that is the whole FFN of a layer, or None in a family that has none for it."""
        (keys, _, _), (values, _, _) = (path.rpartition(".") for path in (self.family.keys, self.family.values))
        return self._part(self.blocks[layer], "FFN", values) if values and keys == values else None

    def keys(self, layer: int) -> nn.Module:
        """The module that holds the keys of a layer (the "up" matrix where the FFN is gated)."""
        return self._matrix(layer, "keys", self.family.keys)

    def gate(self, layer: int) -> nn.Module | None:
        """The module that holds the gate of a layer, or None for a plain FFN."""
        return None if self.family.gate is None else self._matrix(layer, "gate", self.family.gate)

    def values(self, layer: int) -> nn.Module:
        """The module that holds the values of a layer."""
        return self._matrix(layer, "values", self.family.values)

    def values_path(self, layer: int) -> str:
        """The name of the values' module in the whole model, e.g. ``model.layers.6.mlp.down_proj``."""
        return f"{self.family.blocks}.{layer}.{self.family.values}"

    @property
    def adds_plainly(self) -> bool:
        """Whether adding to an FFN's output is adding to the block's output (OPT-350m normalises in between)."""
        return self.family.adds_plainly and bool(getattr(self.model.config, "do_layer_norm_before", True))

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm before the unembedding, or None."""
        return self._part(self.model, "final_norm", self.family.final_norm) if self.family.final_norm else None

    @property
    def head(self) -> nn.Module:
        """The position-wise module that ends in the logits."""
        if self.family.head is not None:
            return self._part(self.model, "head", self.family.head)
        head = self.model.get_output_embeddings()
        if head is None:
            raise UnsupportedModelError(
                f"{_name(self.model)} has no output embedding; load it as a causal or masked language model"
            )
        return head

    def _matrix(self, layer: int, part: str, path: str) -> nn.Module:
        module = self._part(self.blocks[layer], part, path)
        if not hasattr(module, "weight") or module.weight.ndim != 2:
            raise UnsupportedModelError(
                f"{_name(self.model)}: the {part} of layer {layer} ('{path}') is a {type(module).__name__} without a "
                "two-dimensional weight; quantised layers and mixtures of experts are not supported"
            )
        return module

    def _part(self, root: nn.Module, part: str, path: str) -> nn.Module:
        try:
            return functools.reduce(getattr, path.split("."), root)
        except AttributeError:
            raise UnsupportedModelError(
                f"{_name(self.model)} has no {part} at '{path}'; give its paths as a `Family` "
                "(load(..., family=Family(...))) or add them to corrigenda/models/architecture.py"
            ) from None


def stores_transposed(module: nn.Module) -> bool:
    """Whether a matrix module keeps its weight as (in, out), as GPT-2's Conv1D does, and not as Linear's (out, in)."""
    return isinstance(module, Conv1D)


def inspect_family(model: PreTrainedModel) -> Family:
    """Finds the parts of a family that is not in the table, where that is unambiguous.

    A part is taken only when exactly one candidate fits: one list of equal blocks as long as the model is deep; in
    its blocks one matrix from the FFN's width to the model's, one or two (a gate) the other way round, and one
    module whose name says attention.

    Raises:
        UnsupportedModelError: nothing or more than one thing fits; the message lists what is lacking.
    """
    lacking: list[str] = []
    config = model.config.get_text_config()
    depth = getattr(config, "num_hidden_layers", None)
    width = getattr(config, "hidden_size", None)
    lists = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == depth
        and len(module) > 0
        and len({type(block) for block in module}) == 1
    ]
    if len(lists) != 1:
        found = ", ".join(path for path, _ in lists) or "none"
        raise UnsupportedModelError(_unknown(model, [f"one list of {depth} equal blocks (found: {found})"]))
    path, blocks = lists[0]
    experts = [name for name, _ in blocks.named_modules() if any(word in name for word in ("expert", "moe"))]
    if experts:  # one that is shared by all tokens would be found below, and is not the whole FFN
        raise UnsupportedModelError(
            f"{_name(model)} is a mixture of experts ('{path}.{experts[0]}'), and those are not supported: "
            "its feed-forward layers are not one key-value memory each"
        )
    matrices = {
        name: _in_out(module)
        for name, module in blocks[0].named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and "attn" not in name and "attention" not in name
    }
    values = [name for name, (d_in, d_out) in matrices.items() if d_out == width and d_in != width]
    d_ffn = matrices[values[0]][0] if len(values) == 1 else None
    if d_ffn is None:
        lacking.append(f"one FFN matrix onto the model's width {width} (found: {', '.join(values) or 'none'})")
    into = [name for name, shape in matrices.items() if d_ffn is not None and shape == (width, d_ffn)]
    gates = [name for name in into if "gate" in name]
    keys = [name for name in into if name not in gates]
    if d_ffn is not None and (len(keys) != 1 or len(gates) > 1):
        lacking.append(
            f"one key matrix and at most one gate onto the FFN's width {d_ffn} (found: {', '.join(into) or 'none'})"
        )
    attention = [name for name, _ in blocks[0].named_children() if "attn" in name or "attention" in name]
    attention = [name for name in attention if "norm" not in name and not name.startswith("ln")]
    if len(attention) != 1:
        lacking.append(f"one attention module in a block (found: {', '.join(attention) or 'none'})")
    else:
        # A norm as wide as the model, other than of queries and keys: the residual addition lies inside, too.
        norms = [
            name
            for name, module in blocks[0].get_submodule(attention[0]).named_modules()
            if "norm" in type(module).__name__.lower()
            and getattr(module, "weight", torch.empty(0)).shape == (width,)
            and not name.rpartition(".")[2].lower().startswith(("q", "k"))
        ]
        if norms:
            lacking.append(f"a module whose output is what attention adds ('{attention[0]}' has '{norms[0]}' inside)")
    if lacking:
        raise UnsupportedModelError(_unknown(model, lacking))
    return Family(
        blocks=path,
        keys=keys[0],
        values=values[0],
        gate=gates[0] if gates else None,
        attention=attention[0],
        attention_output=_output_projection(blocks[0], attention[0], int(config.hidden_size)),
        # Without a table entry nothing says that the model is causal but its class; be careful, not fast, otherwise.
        causal=bool(model.can_generate()) and not getattr(config, "is_encoder_decoder", False),
        adds_plainly=False,
    )


def _output_projection(block: nn.Module, attention: str, width: int) -> str | None:
    """The path of the one matrix onto the model's width that is named as output projections are; None for another."""
    found = [
        f"{attention}.{name}"
        for name, module in block.get_submodule(attention).named_modules()
        if isinstance(module, (nn.Linear, Conv1D))
        and name.rpartition(".")[2] in ("o_proj", "out_proj", "c_proj")
        and _in_out(module)[1] == width
    ]
    return found[0] if len(found) == 1 else None


def _in_out(module: nn.Module) -> tuple[int, int]:
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    rows, columns = weight.shape
    return (rows, columns) if stores_transposed(module) else (columns, rows)


def _name(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} (model_type '{model.config.model_type}')"


def _unknown(model: PreTrainedModel, lacking: list[str]) -> str:
    return (
        f"{_name(model)} is of a family that is not in the table, and inspection did not find "
        f"{'; nor '.join(lacking)}. Known families: {', '.join(sorted(FAMILIES))}. "
        "Give its paths as a `Family` (load(..., family=Family(...))) or add them to corrigenda/models/architecture.py."
    )
