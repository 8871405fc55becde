"""What the two forms in GGUF share: the change of each layer, what llama.cpp calls it, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corrigenda.edits.origin import Origin
from corrigenda.errors import UnsupportedModelError, WrongModelError
from corrigenda.models.families import FAMILIES
from corrigenda.models.sources import config_of

NAMES = {
    "cohere": "command-r",
    "gemma3_text": "gemma3",
    "glm": "chatglm",
    "gpt_neox": "gptneox",
    "ministral3": "mistral3",
    "mistral": "llama",
    "olmo3": "olmo2",
    "phi": "phi2",
}
"""What llama.cpp's converter calls a family, by `config.model_type`, where it is not the same."""
FACTS, EDITOR, FINGERPRINT = "corrigenda.facts", "corrigenda.editor", "corrigenda.fingerprint"
"""The keys that say which facts were edited, by which editors, and in which weights (`BareModel.fingerprint`)."""

Change = tuple[Origin, Mapping[int, tuple[Tensor, Tensor]]]
"""An edit: where it comes from, and for each layer A, (d_ffn, rank), and B, (rank, d_model), of V <- V + A B."""


def layers_of(changes: Sequence[Change]) -> list[int]:
    """The layers that edits of one model change, in order.

    Raises:
        ValueError: there is none.
        WrongModelError: the edits were made on different models.
    """
    if len(models := {origin.fingerprint: origin.model for origin, _ in changes}) > 1:
        raise WrongModelError(f"the edits of one file have to be of one model, not of {', '.join(models.values())}")
    layers = sorted({layer for _, factors in changes for layer in factors})
    if not layers:
        raise ValueError("an edit that changes no layer cannot be written as GGUF")
    return layers


def joined(changes: Sequence[Change], layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A, (d_ffn, rank), and B, (rank, d_model), of the sum of all changes of a layer."""
    parts = [factors[layer] for _, factors in changes if layer in factors]
    left, right = zip(*parts, strict=True)
    return torch.cat([part.to(dtype) for part in left], 1), torch.cat([part.to(dtype) for part in right])


def provenance(changes: Sequence[Change]) -> dict[str, str]:
    """By key of the file's metadata, where the changes come from."""
    origins = [origin for origin, _ in changes]
    return {
        EDITOR: ", ".join(dict.fromkeys(origin.editor for origin in origins)),
        FACTS: "\n".join(change for origin in origins for change in origin.changes),
        FINGERPRINT: origins[0].fingerprint,
    }


def tensor_names(base: str | Path, layers: Sequence[int]) -> tuple[str, dict[int, str]]:
    """What llama.cpp calls a model's family, and by layer its tensor of the values.

    Raises:
        UnsupportedModelError: it has none.
        Exception: what `models.sources.config_of` raises of the base.
    """
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    config: Any = config_of(base)
    family = FAMILIES.get(config.model_type)
    called = NAMES.get(config.model_type, config.model_type)
    arch = next((key for key, name in MODEL_ARCH_NAMES.items() if name == called), None)
    found: dict[int, str | None] = dict.fromkeys(layers)
    why = "llama.cpp has no tensors for the values of layers " + ", ".join(map(str, layers))
    if config.is_encoder_decoder:
        why = "it is an encoder-decoder"
    elif family is not None and family.mixture is not None:
        why = "it is a mixture of experts, whose matrices lie in one tensor"
    elif family is None or arch is None:
        why = "gguf does not know its family"
    else:
        table = get_tensor_name_map(arch, config.num_hidden_layers)
        found = {layer: table.get_name(f"{family.blocks}.{layer}.{family.values}") for layer in layers}
    if None in found.values():
        raise UnsupportedModelError(
            f"an edit of {base} (model_type {config.model_type!r}) cannot be written as GGUF: {why}; export the edited "
            "model as a folder (corrigenda export form=model, lm.save_pretrained)"
        )
    return called, {layer: f"{name}.weight" for layer, name in found.items()}
