"""Weights as a GGUF file packs them in blocks, under the names of transformers: the same bits, a fifth of the size.

Its blocks stand for float32 with more digits than half precision has. The file itself would do, too; but reading its
vocabulary takes longer than reading the weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash

from corrigenda.models.identity import named
from corrigenda.system.files import bytes_of, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

FILE = "packed.safetensors"
"""The file's name in a model's folder, beside `config.json`."""
PLAIN = ("F32", "F16", "BF16")
"""Types of a GGUF file's tensors that are numbers, and no blocks."""
PIECE = 2**18
"""Numbers that are unpacked at once."""


def pack(gguf_file: Path, model: Any, folder: Path) -> None:
    """Writes the weights of a model as transformers made it of a GGUF file into a folder, as `FILE`.

    A weight is kept packed where its blocks, read again, give its bits; else in its own type, as it is.
    """
    from corrigenda.models.gguf_reader import LeanReader

    reader = LeanReader(gguf_file)
    blocks = {tensor.name: tensor for tensor in reader.tensors}
    named = _names(reader, model)
    heads = {getattr(model.config, name, None) for name in ("num_attention_heads", "num_key_value_heads")}
    tensors: dict[str, Tensor] = {}
    kinds: dict[str, str] = {}
    for name, weight in model.named_parameters():  # what is tied comes once
        tensors[name] = weight.detach()
        block = blocks.get(named.get(name, ""))
        if block is None or block.tensor_type.name in PLAIN:
            continue
        for rows in _orders(torch.from_numpy(block.data.copy()), heads):
            read = _unpacked(rows, block.tensor_type.name)
            if read.shape == weight.shape and torch.equal(read.view(torch.int32), weight.detach().view(torch.int32)):
                tensors[name], kinds[name] = rows, block.tensor_type.name
                break
    buffers = dict(model.named_buffers())
    tensors |= {name: buffers[name] for name in model.state_dict() if name in buffers}
    write(folder, tensors, kinds)


def write(folder: Path, tensors: Mapping[str, Tensor], kinds: Mapping[str, str]) -> None:
    """Writes `FILE`: by a parameter's name its rows of blocks, of the kind named, or its numbers."""
    write_tensors(folder / FILE, tensors, {"kinds": json.dumps(kinds)})


def unpack(folder: Path, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The weights that `pack` wrote into a folder, by name.

    Each matrix is cast to `dtype` as soon as it is read, so that a large model is never in memory in float32; by
    default float32 what was packed, and the others in their types. Raises ValueError: the file is damaged.
    """
    names, kinds = _contents(folder)
    found: dict[str, Tensor] = {}
    for name in names:
        tensor = _tensor(folder, name)
        if name in kinds:
            found[name] = _unpacked(tensor, kinds[name], dtype or torch.float32)
        else:
            # Copied: otherwise the whole file stays in memory for the sake of a norm.
            found[name] = tensor.to(tensor.dtype if dtype is None or tensor.dim() < 2 else dtype, copy=True)
    return found


def _contents(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The names in `FILE`, and by name the kinds of what is packed."""
    from safetensors import safe_open

    with safe_open(folder / FILE, framework="pt") as file:
        return sorted(file.keys()), json.loads((file.metadata() or {})["kinds"])


def _tensor(folder: Path, name: str) -> Tensor:
    """One of `FILE`, which is opened anew for each, so that what was read leaves the memory with the tensor."""
    from safetensors import safe_open

    with safe_open(folder / FILE, framework="pt") as file:
        found: Tensor = file.get_tensor(name)
    return found


def fingerprint_of(folder: Path, dtype: torch.dtype) -> str:
    """`BareModel.fingerprint` of what `load` makes of such a folder in a dtype, from a piece of a tensor at a time."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    first: dict[int, str] = {}  # of weights that are tied the file has the first name alone
    source = {name: first.setdefault(id(one), name) for name, one in model.named_parameters(remove_duplicate=False)}
    digest = xxhash.xxh3_128(config.model_type.encode())
    _, kinds = _contents(folder)
    for name in sorted(model.state_dict()):
        there = source.get(name, name)
        tensor = _tensor(folder, there)
        shape = shape_of(tensor, kinds[there]) if there in kinds else tensor.shape
        digest.update(named(name, dtype if there in kinds or tensor.is_floating_point() else tensor.dtype, shape))
        pieces = _pieces(tensor, kinds[there]) if there in kinds else [tensor]
        for piece in pieces:
            digest.update(bytes_of(piece.to(dtype) if piece.is_floating_point() else piece))
    return digest.hexdigest()


def _unpacked(rows: Tensor, kind: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """What rows of blocks stand for, in memory that torch aligned: on that may depend how a product is computed."""
    found = torch.empty(shape_of(rows, kind), dtype=dtype)
    whole, begin = found.view(-1, found.shape[-1]), 0
    for piece in _pieces(rows, kind):
        whole[begin : begin + len(piece)] = piece
        begin += len(piece)
    return found


def require_readable(rows: Tensor, kind: str) -> None:
    """Unpacks the first row, since the library cannot unpack all kinds of blocks.

    Raises:
        NotImplementedError: it cannot.
    """
    _unpacked(rows[:1], kind)


def shape_of(rows: Tensor, kind: str) -> tuple[int, ...]:
    """The shape of what rows of blocks stand for."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quant_shape_from_byte_shape

    return quant_shape_from_byte_shape(rows.shape, GGMLQuantizationType[kind])


def _pieces(rows: Tensor, kind: str) -> Iterator[Tensor]:
    """What rows of blocks stand for, some rows at a time, so that these stay in the processor's cache."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    packed = rows.view(-1, rows.shape[-1])
    step = max(1, PIECE // shape_of(rows, kind)[-1])
    for begin in range(0, len(packed), step):
        part = packed[begin : begin + step]
        # As one row: of many rows the library takes sixteen at a time, and most of the time goes into that.
        piece = dequantize(part.numpy().reshape(1, -1), GGMLQuantizationType[kind])
        yield torch.from_numpy(piece).view(len(part), -1)


def _names(reader: Any, model: Any) -> dict[str, str]:
    """By a parameter's name in transformers, its tensor's name in the file."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    wanted = reader.fields["general.architecture"].contents()
    known = next((arch for arch, name in MODEL_ARCH_NAMES.items() if name == wanted), None)
    if known is None:
        return {}
    table = get_tensor_name_map(known, int(model.config.num_hidden_layers))
    found: dict[str, str] = {}
    for name, _ in model.named_parameters():
        stem, _, suffix = name.rpartition(".")
        theirs = table.get_name(stem)
        if theirs is not None:
            found[name] = f"{theirs}.{suffix}"
    return found


def _orders(rows: Tensor, heads: set[int | None]) -> Iterator[Tensor]:
    """The orders in which transformers may have a matrix's rows.

    llama.cpp has the two halves of each head's queries and keys, which rotary positions turn together, in turns;
    transformers has one after the other.
    """
    yield rows
    for n_heads in sorted(head for head in heads if head):
        if rows.dim() == 2 and len(rows) % (2 * n_heads) == 0:
            yield rows.reshape(n_heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
