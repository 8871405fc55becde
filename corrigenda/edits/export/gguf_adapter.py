"""Changes of value matrices as a LoRA adapter in GGUF: llama.cpp and Ollama add it to a model's own, untouched file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from corrigenda.edits.export.changes import Change, joined, layers_of, provenance, tensor_names
from corrigenda.edits.origin import require_finite
from corrigenda.system.files import expanded, write_file, write_text

ADAPTER = "adapter.gguf"
"""The file's name in the folder, beside Ollama's `Modelfile`."""


def write_gguf_adapter(
    folder: Path,
    changes: Sequence[Change],
    rank: int | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    base: str | Path | None = None,
) -> dict[int, float]:
    """Writes the sum of edits as `ADAPTER`, and a `Modelfile` beside it.

    llama.cpp scales each layer by alpha / (the rank of that layer's factors), and there is one alpha in a file: so all
    layers have the largest rank among them, filled up with zeros, and the scale is 1.

    Args:
        folder: where to.
        changes: of one model, each applied on top of those before.
        rank: the largest that a layer may have, the best approximation of it; None for the change as it is.
        dtype: of the factors in the file.
        base: the model, as `load` names it; None for the name that it had when the edits were made.

    Returns:
        For each layer how far what is written is from the change, as a share of its Frobenius norm.

    Raises:
        ValueError: no layer is changed, or the rank is less than 1.
        WrongModelError: the edits were made on different models.
        UnsupportedModelError: llama.cpp has no such model, or not its value matrices one by one.
        EditRefusedError: the factors are too large for float16.
        Exception: what `models.sources.config_of` raises of the base.
    """
    if dtype not in ("float32", "float16") or (rank is not None and rank < 1):
        raise ValueError(f"dtype={dtype!r}, rank={rank}: an adapter is in float32 or float16, of rank 1 or more")
    layers = layers_of(changes)
    base = base or changes[0][0].model
    arch, names = tensor_names(base, layers)
    written: dict[int, tuple[Tensor, Tensor]] = {}
    errors = {}
    for layer in layers:
        left, right = joined(changes, layer, torch.float64)
        whole = _lora(left, right, rank)
        lora_a, lora_b = (side.to(getattr(torch, dtype)) for side in whole)
        require_finite("gguf-adapter", {f"layer {layer}: lora_a": lora_a, f"layer {layer}: lora_b": lora_b})
        written[layer] = lora_a, lora_b
        rounded = not (torch.equal(lora_a.double(), whole[0]) and torch.equal(lora_b.double(), whole[1]))
        missed = 0.0
        if rounded or len(lora_a) < left.shape[1]:  # else it is the change itself
            difference = torch.cat([left, -lora_a.T.double()], 1), torch.cat([right, lora_b.T.double()])
            missed = _norm(*difference) / (_norm(left, right) or 1.0)
        errors[layer] = missed
    said = {"general.name": f"edits of {base}", **provenance(changes)}
    write_file(folder / ADAPTER, lambda path: _write(path, arch, {names[n]: pair for n, pair in written.items()}, said))
    file = expanded(base)
    place = file.resolve() if file.suffix == ".gguf" else "./model.gguf"
    write_text(folder / "Modelfile", f"# FROM: the GGUF file of {base}\nFROM {place}\nADAPTER ./{ADAPTER}\n")
    return errors


def _lora(left: Tensor, right: Tensor, rank: int | None) -> tuple[Tensor, Tensor]:
    """A B transposed, as lora_a, (rank, d_ffn), and lora_b, (d_model, rank).

    Where they have a rank above the largest that A B can have, or above `rank`, the singular value decomposition of
    A B takes their place. The two sides of each component are made of like size by a power of two, which costs no
    digit: so neither over- nor underflows in half precision.
    """
    most = min(left.shape[0], right.shape[1], rank or left.shape[1])
    if left.shape[1] > most:
        (outer, core), (inner, other) = torch.linalg.qr(left), torch.linalg.qr(right.T)
        u, s, v = torch.linalg.svd(core @ other.T, full_matrices=False)
        left, right = outer @ u[:, :most], s[:most, None] * v[:most] @ inner.T
    balance = (right.norm(dim=1) / left.norm(dim=0)).log2() / 2
    scale = balance.nan_to_num(0.0, 0.0, 0.0).round().exp2()
    return (left * scale).T, (right / scale[:, None]).T


def _norm(left: Tensor, right: Tensor) -> float:
    """The Frobenius norm of A B, which is multiplied out only where its rank is as large as its sides."""
    if left.shape[1] < min(left.shape[0], right.shape[1]):
        left, right = torch.linalg.qr(left, mode="r").R, torch.linalg.qr(right.T, mode="r").R.T
    return float((left @ right).norm())


def _write(path: Path, arch: str, pairs: Mapping[str, tuple[Tensor, Tensor]], said: Mapping[str, str]) -> None:
    from gguf import GGUFType, GGUFWriter, Keys

    rank = max(len(lora_a) for lora_a, _ in pairs.values())
    writer = GGUFWriter(path, arch)
    writer.add_type(GGUFType.ADAPTER)
    writer.add_string(Keys.Adapter.TYPE, "lora")
    writer.add_float32(Keys.Adapter.LORA_ALPHA, float(rank))
    for key, text in said.items():
        writer.add_string(key, text)
    for name, (lora_a, lora_b) in pairs.items():
        missing = rank - len(lora_a)
        writer.add_tensor(f"{name}.lora_a", pad(lora_a, (0, 0, 0, missing)).contiguous().numpy())
        writer.add_tensor(f"{name}.lora_b", pad(lora_b, (0, missing)).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
