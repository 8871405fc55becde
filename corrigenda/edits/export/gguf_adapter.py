"""Changes of value matrices as a LoRA adapter in GGUF: llama.cpp and Ollama add it to a model's own, untouched file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from corrigenda.edits.origin import Origin, require_finite
from corrigenda.errors import UnsupportedModelError, WrongModelError
from corrigenda.models.families import FAMILIES
from corrigenda.models.sources import config_of
from corrigenda.system.files import expanded, write_file, write_text

ADAPTER = "adapter.gguf"
"""The file's name in the folder, beside Ollama's `Modelfile`."""
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

Change = tuple[Origin, Mapping[int, tuple[Tensor, Tensor]]]
"""An edit: where it comes from, and for each layer A, (d_ffn, rank), and B, (rank, d_model), of V <- V + A B."""


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
    origins = [origin for origin, _ in changes]
    if len(models := {origin.fingerprint: origin.model for origin in origins}) > 1:
        raise WrongModelError(f"the edits of an adapter have to be of one model, not of {', '.join(models.values())}")
    if dtype not in ("float32", "float16") or (rank is not None and rank < 1):
        raise ValueError(f"dtype={dtype!r}, rank={rank}: an adapter is in float32 or float16, of rank 1 or more")
    layers = sorted({layer for _, factors in changes for layer in factors})
    if not layers:
        raise ValueError("an edit that changes no layer cannot be written as a GGUF adapter")
    base = base or origins[0].model
    arch, names = _tensor_names(base, layers)
    written: dict[int, tuple[Tensor, Tensor]] = {}
    errors = {}
    for layer in layers:
        parts = [factors[layer] for _, factors in changes if layer in factors]
        left = torch.cat([part.double() for part, _ in parts], 1)
        right = torch.cat([part.double() for _, part in parts])
        lora_a, lora_b = (side.to(getattr(torch, dtype)) for side in _lora(left, right, rank))
        require_finite("gguf-adapter", {f"layer {layer}: lora_a": lora_a, f"layer {layer}: lora_b": lora_b})
        change = left @ right
        missed = float((change.T - lora_b.double() @ lora_a.double()).norm())
        written[layer], errors[layer] = (lora_a, lora_b), missed / (float(change.norm()) or 1.0)
    said = {
        "general.name": f"edits of {base}",
        "corrigenda.editor": ", ".join(dict.fromkeys(origin.editor for origin in origins)),
        "corrigenda.facts": "\n".join(change for origin in origins for change in origin.changes),
        "corrigenda.fingerprint": origins[0].fingerprint,
    }
    write_file(folder / ADAPTER, lambda path: _write(path, arch, {names[n]: pair for n, pair in written.items()}, said))
    file = expanded(base)
    place = file.resolve() if file.suffix == ".gguf" else "./model.gguf"
    write_text(folder / "Modelfile", f"# FROM: the GGUF file of {base}\nFROM {place}\nADAPTER ./{ADAPTER}\n")
    return errors


def _tensor_names(base: str | Path, layers: Sequence[int]) -> tuple[str, dict[int, str]]:
    """What llama.cpp calls a model's family, and by layer its tensor of the values.

    Raises:
        UnsupportedModelError: it has none.
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
            f"there is no GGUF adapter for {base} (model_type {config.model_type!r}): {why}; export the edited "
            "model as a folder (corrigenda export form=model, lm.save_pretrained)"
        )
    return called, {layer: f"{name}.weight" for layer, name in found.items()}


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
