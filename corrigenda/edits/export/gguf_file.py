"""A model's own GGUF file with changed value matrices in it; everything else stays byte for byte."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
import torch

from corrigenda.edits.export.changes import FACTS, Change, joined, layers_of, provenance, tensor_names
from corrigenda.errors import EditRefusedError, UnsupportedModelError, WrongModelError
from corrigenda.models import embedded
from corrigenda.models.packed import fingerprint_of
from corrigenda.models.sources import local_folder
from corrigenda.system.files import expanded, scratch_prefix, write_file

Kind = Literal["float16", "q8_0", "former"]
"""What edited tensors are written as; "former" is what they were before."""
FINE = ("F32", "BF16", "F16", "Q8_0")
"""Former types that edited tensors keep by default."""
PIECE = 2**20
"""So many numbers, or bytes, are worked on at once."""


def write_gguf(
    path: Path, changes: Sequence[Change], dtype: Kind | None = None, base: str | Path | None = None
) -> dict[int, str]:
    """Writes the GGUF file of a model with edits in its value matrices.

    All other tensors and all metadata are copied byte for byte; the keys of `changes.provenance` are added, and facts
    of earlier edits of the file stay named. No more than a piece of one tensor is in memory at a time.

    Args:
        path: where to.
        changes: of one model, each applied on top of those before.
        dtype: of the edited tensors; None for their former types where these are as fine as Q8_0, else Q8_0 (float16
            where their rows are no whole blocks).
        base: the file, or an embedded model, whose file is fetched again; None for the model's name when the edits
            were made.

    Returns:
        For each layer what its tensor is written as, in llama.cpp's name ("Q8_0").

    Raises:
        FileExistsError: there is something at `path`.
        ValueError: no layer is changed; the base is no GGUF file; or the library cannot write a tensor so.
        WrongModelError: the edits were made on different models, or on another than that of the file.
        UnsupportedModelError: llama.cpp has no such model, or not its value matrices one by one.
        EditRefusedError: edited numbers are too large for the type.
        Exception: what `models.sources.config_of` raises of the base.
    """
    if dtype is not None and dtype not in get_args(Kind):
        raise ValueError(f"dtype={dtype!r}: edited tensors are written as {', '.join(get_args(Kind))}")
    if path.exists():
        raise FileExistsError(f"{path}: there is something already; name a new file")
    layers = layers_of(changes)
    base = base or changes[0][0].model
    _, names = tensor_names(base, layers)
    _require_same(base, changes)
    with _file_of(base, path.parent) as source:
        from corrigenda.models.gguf_reader import LeanReader

        reader = LeanReader(source)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        missing = [name for name in names.values() if name not in tensors]
        if missing:
            raise UnsupportedModelError(f"{source} has no tensor {missing[0]}; export the edited model as a folder")
        kinds = {layer: _kind(tensors[name], dtype) for layer, name in names.items()}
        new = {
            names[layer]: (kind, _rows(tensors[names[layer]], kind, changes, layer)) for layer, kind in kinds.items()
        }
        write_file(path, lambda scratch: copy_with(new, provenance(changes), source, reader, scratch))
    return {layer: kind.name for layer, kind in kinds.items()}


@contextmanager
def _file_of(base: str | Path, near: Path) -> Iterator[Path]:
    """The GGUF file of a model; of an embedded one it is there inside the ``with`` block alone."""
    if str(base) not in embedded.EMBEDDED:
        yield expanded(base)
        return
    near.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=near, prefix=scratch_prefix("base")) as scratch:
        yield embedded.fetch_file(str(base), Path(scratch))


def _require_same(base: str | Path, changes: Sequence[Change]) -> None:
    """Refuses a base that is no GGUF file, or not the one that was edited, in whatever precision it was."""
    if str(base) not in embedded.EMBEDDED and expanded(base).suffix != ".gguf":
        raise ValueError(
            f"{base} is no GGUF file: name the file that the edit was made on (base=, model.name=), or write an "
            "adapter (form=gguf-adapter), which fits any file of the model"
        )
    origin, folder = changes[0][0], local_folder(base, expanded(base))
    assert folder is not None  # both kinds of base are on this machine
    found = (fingerprint_of(folder, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16))
    if origin.fingerprint not in found:
        raise WrongModelError(
            f"{base} does not hold the weights that the edit was made on ({origin.model}, {origin.fingerprint[:12]}): "
            "edit that file itself (model.name=...), or write an adapter (form=gguf-adapter), which fits any "
            "file of the model"
        )


def _kind(tensor: Any, dtype: Kind | None) -> Any:
    """What an edited tensor is written as. Raises ValueError: the library cannot write it so."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    former, row = tensor.tensor_type, int(tensor.shape[0])
    kind = {"float16": GGMLQuantizationType.F16, "q8_0": GGMLQuantizationType.Q8_0}.get(str(dtype), former)
    if dtype is None and former.name not in FINE:
        kind = GGMLQuantizationType.Q8_0 if row % 32 == 0 else GGMLQuantizationType.F16
    block = GGML_QUANT_SIZES[kind][0]
    try:
        if row % block == 0:
            quants.quantize(np.zeros((1, block), np.float32), kind)
            return kind
        why = f"its rows of {row} numbers are no whole blocks of {block}"
    except NotImplementedError:
        why = "the gguf library reads that type and does not write it"
    raise ValueError(
        f"dtype={dtype}: {tensor.name} cannot be written as {kind.name}: {why}; take dtype=q8_0 or dtype=float16, or "
        "leave dtype out"
    )


def _rows(tensor: Any, kind: Any, changes: Sequence[Change], layer: int) -> Iterator[bytes]:
    """The bytes of an edited tensor, some rows at a time: of V^T + (A B)^T, (d_model, d_ffn)."""
    from gguf import quants

    left, right = joined(changes, layer, torch.float32)
    step = max(1, PIECE // left.shape[0])
    for begin in range(0, len(tensor.data), step):
        rows = slice(begin, begin + step)
        clean = quants.dequantize(np.ascontiguousarray(tensor.data[rows]), tensor.tensor_type)
        made = clean + (left @ right[:, rows]).T.numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            packed = quants.quantize(np.ascontiguousarray(made), kind)
            fits = np.isfinite(quants.dequantize(packed, kind)).all()
        if not fits:
            raise EditRefusedError(
                f"layer {layer}: edited values up to {np.abs(made).max():.3g} are too large for {kind.name}; take "
                "dtype=former, or another edit"
            )
        yield packed.tobytes()


def copy_with(
    new: Mapping[str, tuple[Any, Iterable[bytes]]], said: Mapping[str, str], source: Path, reader: Any, path: Path
) -> None:
    """Copies a GGUF file, with `new` tensors (type and bytes by name) in the place of some, and texts in its metadata.

    The library's writer would encode all metadata anew, and knows neither empty nor nested arrays: they are copied. The
    facts that the file names are named before those here.
    """
    from gguf import GGML_QUANT_SIZES, GGUFValueType

    sizes = {
        tensor.name: tensor.n_elements // GGML_QUANT_SIZES[kind][0] * GGML_QUANT_SIZES[kind][1]
        for tensor in reader.tensors
        for kind in [new[tensor.name][0] if tensor.name in new else tensor.tensor_type]
    }
    fields = [field for field in reader.fields.values() if not field.name.startswith("GGUF.")]
    ends = [*(field.offset for field in fields[1:]), reader.tensors[0].field.offset]
    kept = [(field.offset, end) for field, end in zip(fields, ends, strict=True) if field.name not in said]
    if FACTS in said and (earlier := reader.fields.get(FACTS)):
        said = {**said, FACTS: f"{earlier.contents()}\n{said[FACTS]}"}
    with source.open("rb") as file, path.open("wb") as out:
        out.write(file.read(8))  # the magic, the version
        out.write(struct.pack("<QQ", len(reader.tensors), len(kept) + len(said)))
        for begin, end in kept:
            _copy(file, out, begin, end - begin)
        for key, text in said.items():
            out.write(_string(key) + struct.pack("<I", GGUFValueType.STRING) + _string(text))
        offset = 0
        for tensor in reader.tensors:
            *named, kind, _ = tensor.field.parts
            kind = new[tensor.name][0] if tensor.name in new else kind[0]
            out.write(b"".join(part.tobytes() for part in named[:4]) + struct.pack("<IQ", kind, offset))
            offset += sizes[tensor.name] + -sizes[tensor.name] % reader.alignment
        for tensor in reader.tensors:
            out.write(bytes(-out.tell() % int(reader.alignment)))
            if tensor.name in new:
                out.writelines(new[tensor.name][1])
            else:
                _copy(file, out, tensor.data_offset, tensor.n_bytes)
        out.write(bytes(-out.tell() % int(reader.alignment)))


def _string(text: str) -> bytes:
    """A text as GGUF has it."""
    encoded = text.encode("utf-8")
    return struct.pack("<Q", len(encoded)) + encoded


def _copy(file: IO[bytes], out: IO[bytes], begin: int, size: int) -> None:
    """Copies some of a file, a piece at a time."""
    file.seek(begin)
    while size and (piece := file.read(min(size, PIECE))):
        out.write(piece)
        size -= len(piece)
