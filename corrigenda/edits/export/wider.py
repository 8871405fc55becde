"""A model whose feed-forward networks are wider by added neurons, as transformers has it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from corrigenda.errors import EditRefusedError, UnsupportedModelError
from corrigenda.models.bare import BareModel
from corrigenda.models.condition import not_finite
from corrigenda.models.matrices import is_quantised, stores_transposed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from corrigenda.edits.added_neurons import AddedNeuronsEdit

WIDTHS = ("ffn_dim", "n_inner", "ffn_hidden_size", "intermediate_size")
"""What families call d_ffn in their configuration."""


def wider(lm: BareModel, edits: Sequence[AddedNeuronsEdit]) -> PreTrainedModel:
    """The model with the edits' neurons in its own matrices.

    A configuration has one width for all layers: a layer with fewer added neurons than another gets neurons of zeros,
    which answer nothing. The other weights are those of the model itself, not copies.

    Raises:
        UnsupportedModelError: the model is a mixture of experts or an encoder-decoder; its configuration names no
            width; its weights are quantised; or neurons have biases and its networks none.
        EditRefusedError: a number of the neurons is too large for the precision of the weights.
    """
    parts, model = lm.architecture, lm.model
    mixed = parts.has_encoder or any(parts.experts(layer) for layer in range(lm.n_layers))
    d_ffn = 0 if mixed else lm.memory(0).d_ffn
    # n_inner is None where GPT-2's width is the usual one.
    name = next((name for name in WIDTHS if getattr(model.config, name, 0) in (d_ffn, None)), None)
    if name is None or mixed:
        raise UnsupportedModelError(
            f"{lm.name} ({model.config.model_type}) cannot be written with wider networks: it is a mixture of experts, "
            "an encoder-decoder, or its configuration has no width of its own; save the edit (edit.save)"
        )
    counts = [sum(len(edit.values) for edit in edits if edit.layer == layer) for layer in range(lm.n_layers)]
    state = dict(model.state_dict())
    for layer, count in enumerate(counts):
        state |= _layer(lm, [edit for edit in edits if edit.layer == layer], layer, max(counts) - count)
    config = copy.deepcopy(model.config)
    setattr(config, name, d_ffn + max(counts))
    with torch.device("meta"):
        made = type(model)(config)
    made.load_state_dict(state, assign=True)
    made.tie_weights()
    if model.can_generate():
        made.generation_config = model.generation_config
    if found := not_finite(made):
        raise EditRefusedError(
            f"the neurons are too large for {found[1].dtype} ({found[0]}); load the model in a wider one"
        )
    return made


def _layer(lm: BareModel, edits: Sequence[AddedNeuronsEdit], layer: int, zeros: int) -> dict[str, Tensor]:
    """The wider matrices and biases of a layer, by their names in the model."""
    parts, family = lm.architecture, lm.architecture.family

    def rows(own: Tensor, name: str) -> Tensor:
        new = [getattr(edit, name).to(own) if name else own.new_zeros(len(edit.values)) for edit in edits]
        return torch.cat([own, *new, own.new_zeros(zeros, *own.shape[1:])])

    read, up = ("keys", "biases"), ("ups", "")
    gate, fused = parts.gate(layer), family.gate == family.keys
    made = [(family.values, parts.values(layer), [("values", "")])]
    made.append((family.keys, parts.keys(layer), [read] if gate is None else [read, up] if fused else [up]))
    if gate is not None and not fused:
        made.append((str(family.gate), gate, [read]))
    found = {}
    for path, module, names in made:
        if is_quantised(module):
            raise UnsupportedModelError(f"{lm.name} is quantised; load it unquantised to write it with wider networks")
        across = stores_transposed(module) != (path == family.values)
        weight, bias = module.get_parameter("weight").detach(), getattr(module, "bias", None)
        own = (weight.T if across else weight).chunk(len(names))
        matrix = torch.cat([rows(part, name) for part, (name, _) in zip(own, names, strict=True)])
        found[f"{family.blocks}.{layer}.{path}.weight"] = (matrix.T if across else matrix).contiguous()
        if bias is not None and path != family.values:
            own = bias.detach().chunk(len(names))
            found[f"{family.blocks}.{layer}.{path}.bias"] = torch.cat(
                [rows(part, name) for part, (_, name) in zip(own, names, strict=True)]
            )
        elif read in names and any(bool(edit.biases.any()) for edit in edits):
            raise UnsupportedModelError(f"layer {layer}: the neurons have biases, and the networks of {lm.name} none")
    return found
