"""Finding the parts of a model whose family is not in the table."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from corrigenda.errors import UnsupportedModelError
from corrigenda.models.families import FAMILIES, Family, has_encoder, name_of, unknown_encoder_decoder
from corrigenda.models.matrices import in_out


def inspect_family(model: PreTrainedModel) -> Family:
    """Finds the parts of a family that is not in the table, where that is unambiguous.

    A part is taken only when exactly one candidate fits: one list of equal blocks as long as the model is deep; in
    its blocks one matrix from the FFN's width to the model's, one or two (a gate) the other way round, and one
    module whose name says attention.

    Raises:
        UnsupportedModelError: nothing or more than one thing fits; the message lists what is missing.
    """
    if has_encoder(model):  # whose blocks, and which of two attentions, is not plain
        raise UnsupportedModelError(unknown_encoder_decoder(name_of(model), model.config.model_type))
    config = model.config.get_text_config()
    width = getattr(config, "hidden_size", None)
    path, blocks = _blocks(model, getattr(config, "num_hidden_layers", None))
    (keys, values, gate), missing = _ffn_matrices(blocks[0], width)
    attention, missing_attention = _attention(blocks[0], width)
    if missing + missing_attention:
        raise UnsupportedModelError(_unknown(model, missing + missing_attention))
    return Family(
        blocks=path,
        keys=keys,
        values=values,
        gate=gate,
        attention=attention,
        attention_output=_output_projection(blocks[0], attention, int(config.hidden_size)),
        # Without a table entry nothing says that the model is causal but its class; be careful, not fast, otherwise.
        causal=bool(model.can_generate()),
        adds_plainly=False,
    )


def _blocks(model: PreTrainedModel, depth: int | None) -> tuple[str, nn.ModuleList]:
    """The one list of equal blocks as long as the model is deep, and its path."""
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
            f"{name_of(model)} is a mixture of experts ('{path}.{experts[0]}'), and those are not supported: "
            "its feed-forward layers are not one key-value memory each"
        )
    return path, blocks


def _ffn_matrices(block: nn.Module, width: int | None) -> tuple[tuple[str, str, str | None], list[str]]:
    """The paths of a block's keys, values and gate; and what does not fit (nothing: all is there)."""
    matrices = {
        name: in_out(module)
        for name, module in block.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and "attn" not in name and "attention" not in name
    }
    values = [name for name, (d_in, d_out) in matrices.items() if d_out == width and d_in != width]
    d_ffn = matrices[values[0]][0] if len(values) == 1 else None
    if d_ffn is None:
        return ("", "", None), [f"one FFN matrix onto the model's width {width} (found: {', '.join(values) or 'none'})"]
    into = [name for name, shape in matrices.items() if shape == (width, d_ffn)]
    gates = [name for name in into if "gate" in name]
    keys = [name for name in into if name not in gates]
    if len(keys) != 1 or len(gates) > 1:
        return ("", "", None), [
            f"one key matrix and at most one gate onto the FFN's width {d_ffn} (found: {', '.join(into) or 'none'})"
        ]
    return (keys[0], values[0], gates[0] if gates else None), []


def _attention(block: nn.Module, width: int | None) -> tuple[str, list[str]]:
    """The path of a block's attention module, and what does not fit."""
    attention = [name for name, _ in block.named_children() if "attn" in name or "attention" in name]
    attention = [name for name in attention if "norm" not in name and not name.startswith("ln")]
    if len(attention) != 1:
        return "", [f"one attention module in a block (found: {', '.join(attention) or 'none'})"]
    # A norm as wide as the model, other than of queries and keys: the residual addition lies inside, too.
    norms = [
        name
        for name, module in block.get_submodule(attention[0]).named_modules()
        if "norm" in type(module).__name__.lower()
        and isinstance(weight := getattr(module, "weight", None), torch.Tensor)
        and weight.shape == (width,)
        and not name.rpartition(".")[2].lower().startswith(("q", "k"))
    ]
    if norms:
        return "", [f"a module whose output is what attention adds ('{attention[0]}' has '{norms[0]}' inside)"]
    return attention[0], []


def _output_projection(block: nn.Module, attention: str, width: int) -> str | None:
    """The path of the one matrix onto the model's width that is named as output projections are; None for another."""
    found = [
        f"{attention}.{name}"
        for name, module in block.get_submodule(attention).named_modules()
        if isinstance(module, (nn.Linear, Conv1D))
        and name.rpartition(".")[2] in ("o_proj", "out_proj", "c_proj")
        and in_out(module)[1] == width
    ]
    return found[0] if len(found) == 1 else None


def _unknown(model: PreTrainedModel, missing: list[str]) -> str:
    return (
        f"{name_of(model)} is of a family that is not in the table, and inspection did not find "
        f"{'; nor '.join(missing)}. Known families: {', '.join(sorted(FAMILIES))}. "
        "Give its paths as a `Family` (load(..., family=Family(...))) or add them to corrigenda/models/families.py."
    )
