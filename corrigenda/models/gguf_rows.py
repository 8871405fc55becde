"""The weights of a GGUF file as transformers reads them, still in blocks: the file is never unpacked whole.

That is possible where transformers only renames tensors and puts their rows into another order. Of other architectures
the whole model has to be read (`packed.pack`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from corrigenda.models.packed import PLAIN, require_readable, shape_of

if TYPE_CHECKING:
    from torch import Tensor


def rows_of(gguf_file: Path, model: Any) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """By a parameter's name its rows of blocks, or its float32 numbers; and by name what kind the blocks are.

    The model is of the file's configuration, on the device "meta". None where transformers does more with a tensor than
    rename and reorder it, where the file has not exactly the model's parameters, or where this version of transformers
    does it in another way. A damaged file raises exceptions of many kinds.
    """
    from corrigenda.models.gguf_reader import LeanReader

    reader = LeanReader(gguf_file)
    parameters = dict(model.named_parameters())  # what is tied comes once
    transformed = _transformation(reader, model)
    if transformed is None or model.state_dict().keys() & dict(model.named_buffers()).keys():
        return None
    processor, names = transformed
    tensors: dict[str, Tensor] = {}
    kinds: dict[str, str] = {}
    for tensor in reader.tensors:
        kind = tensor.tensor_type.name
        if kind in PLAIN:
            from gguf import dequantize

            done = processor.process(weights=dequantize(tensor.data, tensor.tensor_type), name=tensor.name)
        else:
            done = processor.process(weights=tensor.data, name=tensor.name)
        name = names.get(done.name, "")
        if name not in parameters:
            continue
        rows = torch.from_numpy(done.weights.copy())
        if kind not in PLAIN:
            require_readable(rows, kind)
            kinds[name] = kind
        if tuple(parameters[name].shape) != (shape_of(rows, kind) if name in kinds else tuple(rows.shape)):
            return None
        tensors[name] = rows
    if tensors.keys() != parameters.keys():
        return None
    return tensors, {name: kinds[name] for name in parameters if name in kinds}  # in the order of `packed.pack`


def _transformation(reader: Any, model: Any) -> tuple[Any, dict[str, str]] | None:
    """What transformers does with each tensor, and by a tensor's name its parameter's; None where it does more."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.modeling_gguf_pytorch_utils import (
            TENSOR_PROCESSORS,
            LlamaTensorProcessor,
            TensorProcessor,
            get_gguf_hf_weights_map,
        )
    except ImportError:
        return None
    architecture = reader.fields["general.architecture"].contents()
    kind: Any = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    if kind not in (TensorProcessor, LlamaTensorProcessor) or get_model_conversion_mapping(model, add_legacy=False):
        return None
    heads = {"num_attention_heads": "head_count", "num_key_value_heads": "head_count_kv"}
    fields = {name: reader.fields.get(f"{architecture}.attention.{field}") for name, field in heads.items()}
    processor = kind(config={name: field.contents() for name, field in fields.items() if field is not None})
    return processor, get_gguf_hf_weights_map(model, processor)
