"""The weights of a GGUF file as transformers reads them, still in blocks: the file is never unpacked whole.

That is possible where transformers only renames tensors, puts their rows into another order, or takes 1 off norms,
which are not in blocks. Of other architectures the whole model has to be read (`packed.pack`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from corrigenda.errors import UnsupportedModelError
from corrigenda.models.packed import PLAIN, require_readable, shape_of

if TYPE_CHECKING:
    from torch import Tensor

    from corrigenda.models.gguf_reader import LeanReader

FREQUENCIES = "rope_freqs.weight"
"""By what llama.cpp divides each frequency of a model's rotary positions."""
LAYERS_OF_27B = {"gemma2": 46, "gemma3_text": 62}
"""Of a Gemma of 27 billion, by kind: its attention is scaled by d_model / heads, and all others by a head's size."""
BYTES_OF_LLAMA_3 = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken")
)
"""Kinds of byte-level vocabularies (tokenizer.ggml.pre) that llama.cpp reads as Llama 3's: with a BOS, and a word that
is a token is that token, whatever the merges make of it."""
WITH_BOS = BYTES_OF_LLAMA_3 | {"chameleon"}
"""Kinds before whose texts llama.cpp puts a BOS where the file does not say whether there is one (llama-vocab.cpp)."""
ELSEWHERE = "load the model's folder or hub id instead"


def rows_of(reader: LeanReader, model: Any) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """By a parameter's name its rows of blocks, or its float32 numbers; and by name what kind the blocks are.

    The model is of the file's configuration, on the device "meta". None where transformers does more with a tensor,
    where the file has not all of the model's parameters, or both of two that are tied, or where this version of
    transformers does it in another way. Raises UnsupportedModelError: the file has a tensor that the model has no place
    for. A damaged file raises exceptions of many kinds.
    """
    parameters = dict(model.named_parameters())  # what is tied comes once
    transformed = _transformation(reader, model)
    held = model.state_dict().keys()  # with both names of what is tied
    if transformed is None or held & dict(model.named_buffers()).keys():
        return None
    processor, names = transformed
    tensors: dict[str, Tensor] = {}
    kinds: dict[str, str] = {}
    for tensor in reader.tensors:
        kind = tensor.tensor_type.name
        if kind in PLAIN:
            from gguf import dequantize

            done = processor.process(weights=dequantize(tensor.data, tensor.tensor_type), name=tensor.name)
        elif "norm" in tensor.name:  # of some architectures it is not what the file has, but 1 less
            return None
        else:
            done = processor.process(weights=tensor.data, name=tensor.name)
        name = names.get(done.name, "")
        if name not in parameters:
            if name in held:
                return None
            if tensor.name != FREQUENCIES:
                raise UnsupportedModelError(
                    f"{reader.path} has the tensor {tensor.name}, for which the {type(model).__name__} that "
                    "transformers makes of the file has no place: without it the model would say other things; "
                    f"{ELSEWHERE}"
                )
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


def complete_config(reader: LeanReader, config: Any) -> None:
    """Gives a configuration what transformers passes over: of positions base and scaling, of a Gemma attention's scale.

    Raises:
        UnsupportedModelError: positions are scaled otherwise than Llama 3.1's.
    """
    # No file says it, and transformers takes 256; llama.cpp goes by the number of layers, too.
    if hasattr(config, "query_pre_attn_scalar"):
        by_width = config.num_hidden_layers == LAYERS_OF_27B.get(config.model_type)
        of_width = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = of_width if by_width else config.head_dim
    _read_positions(reader, config)


def complete_tokenizer(reader: LeanReader, tokenizer: Any) -> None:
    """Gives a byte-level tokenizer what transformers passes over: whether it puts a BOS, and tokens before merges.

    Files of Llama 3 leave both to the kind of their vocabulary. Of other vocabularies transformers knows it.
    """
    said = {name.removeprefix("tokenizer.ggml."): one for name, one in reader.fields.items()}
    if said["model"].contents() != "gpt2" or "pre" not in said:
        return
    kind = said["pre"].contents()
    if kind in BYTES_OF_LLAMA_3:
        tokenizer.backend_tokenizer.model.ignore_merges = True
    if kind in WITH_BOS and "add_bos_token" not in said:
        tokenizer.add_bos_token = True


def _read_positions(reader: LeanReader, config: Any) -> None:
    said = {name.split(".", 1)[1]: one for name, one in reader.fields.items() if ".rope." in name}
    kind = said["rope.scaling.type"].contents() if "rope.scaling.type" in said else "none"
    factors = [said[name].contents() for name in ("rope.scaling.factor", "rope.scale_linear") if name in said]
    own: Any = getattr(config, "rope_parameters", None) or {}
    if "rope.freq_base" in said and "rope_theta" in own:
        own = config.rope_parameters = {**own, "rope_theta": said["rope.freq_base"].contents()}
    of_layers = [one for one in own.values() if isinstance(one, dict)] or [own]  # of some by kinds of layers
    if any(one.get("rope_type", "default") != "default" for one in of_layers):
        return
    if kind not in ("none", "linear") or any(factor not in (0, 1) for factor in factors):
        raise UnsupportedModelError(
            f"{reader.path}: its positions are scaled (rope.scaling.type {kind!r}, factor {factors}), which "
            f"transformers does not read from a GGUF file: the model would say other things; {ELSEWHERE}"
        )
    divisors = next((torch.tensor(one.data).float() for one in reader.tensors if one.name == FREQUENCIES), None)
    if divisors is None or bool((divisors == 1).all()):
        return
    base = float(own.get("rope_theta", 10000.0))
    plain = base ** (-torch.arange(len(divisors)).float() / len(divisors))
    factor, read = float(divisors.max()), 8192  # what all of Llama 3.1, 3.2 and 3.3 have, but for the factor
    turns = read * plain / (2 * torch.pi)  # in as many tokens as were read before; above 4 a frequency stays
    share = ((turns - 1) / 3).clamp(0, 1)
    if not torch.allclose(1 / divisors, share + (1 - share) / factor, rtol=1e-3):
        raise UnsupportedModelError(
            f"{reader.path}: the frequencies of its positions are scaled ({FREQUENCIES}) otherwise than Llama 3.1's, "
            f"which transformers does not read from a GGUF file: the model would say other things; {ELSEWHERE}"
        )
    config.rope_parameters = {
        **own,
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": read,
    }


def _transformation(reader: Any, model: Any) -> tuple[Any, dict[str, str]] | None:
    """What transformers does with each tensor, and by a tensor's name its parameter's; None where it does more."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.modeling_gguf_pytorch_utils import (
            TENSOR_PROCESSORS,
            Gemma2TensorProcessor,
            LlamaTensorProcessor,
            NemotronTensorProcessor,
            TensorProcessor,
            get_gguf_hf_weights_map,
        )
    except ImportError:
        return None
    architecture = reader.fields["general.architecture"].contents()
    kind: Any = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    by_rows = (TensorProcessor, LlamaTensorProcessor, Gemma2TensorProcessor, NemotronTensorProcessor)
    if kind not in by_rows or get_model_conversion_mapping(model, add_legacy=False):
        return None
    heads = {"num_attention_heads": "head_count", "num_key_value_heads": "head_count_kv"}
    fields = {name: reader.fields.get(f"{architecture}.attention.{field}") for name, field in heads.items()}
    processor = kind(config={name: field.contents() for name, field in fields.items() if field is not None})
    return processor, get_gguf_hf_weights_map(model, processor)
