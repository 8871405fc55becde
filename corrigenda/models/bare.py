"""`BareModel`: a transformers model with its tokenizer and parts, without edits: what forwards work on."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal

import torch
import xxhash

from corrigenda.errors import ContextLengthError, WrongModelError
from corrigenda.models.alone import OneThread
from corrigenda.models.architecture import Architecture
from corrigenda.models.condition import settle, taken
from corrigenda.models.encoder_decoder import Parts
from corrigenda.models.experts import MixtureMemory, memory_of
from corrigenda.models.families import Family
from corrigenda.models.identity import computing_hash, named, tokenizer_hash
from corrigenda.models.memory import FFNMemory
from corrigenda.models.offloaded import require_whole, runs_on, stored
from corrigenda.models.routes import Routing
from corrigenda.prompts import TokenBatch, goes_on, pad
from corrigenda.system.files import bytes_of
from corrigenda.text.display import quoted

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Place = int | tuple[int, int]
"""Where one matrix of values is: a layer, or a layer and an expert in it."""
Mark = tuple[int, int, torch.dtype, bytes]
"""Of a parameter: where its numbers lie, how often they were written, their precision, and some of them.

What is written through ``.data``, as PEFT's merge does, counts as no writing.
"""


class BareModel:
    """Weights, tokenizer, architecture and memories of a language model.

    Everything that runs a forward needs no more than this. `LanguageModel` adds the edits that are applied, and the
    text that it generates.

    Args:
        model: a transformers model with a language-modelling head; it is put into evaluation mode, and its weights
            are taken out of autograd (edits are computed with respect to activations).
        tokenizer: its tokenizer.
        name: what messages and results call it.
        family: where its parts are, if its type is not in `families.FAMILIES`.

    Attributes:
        parts: what runs an encoder-decoder on rows of tokens, in the place of the model's own `forward`; it changes
            nothing for other calls of the model. None for other models.
        routing: what forwards and routed edits tell each other (`corrigenda.models.routes`).
        alone: the model's lock (`corrigenda.models.alone`).

    Raises:
        UnsupportedModelError: its parts were not found, or its matrices are split over processes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str | None = None,
        family: Family | None = None,
    ) -> None:
        require_whole(model)
        model = taken(model)
        self.model: Any = model
        self.name = name or model.config.name_or_path or type(model).__name__
        self.architecture = Architecture(model, family)
        self.parts: Parts | None = None
        if self.architecture.has_encoder:
            self.parts = Parts(model, self.architecture.family)
            model.forward, tokenizer = self.parts, self.parts.with_beginning(tokenizer)
        elif self.architecture.family.causal:
            tokenizer = goes_on(tokenizer)
        self.tokenizer = tokenizer
        self.routing = Routing()
        self.alone = OneThread()

    def __repr__(self) -> str:
        kind = self.model.config.model_type
        return f"{type(self).__name__}({self.name!r}, {kind}, {self.n_layers} layers, {self.dtype}, {self.device})"

    @property
    def n_layers(self) -> int:
        """The number of transformer blocks."""
        return self.architecture.n_layers

    @property
    def device(self) -> torch.device:
        """Where the model takes its input."""
        return runs_on(self.model.get_input_embeddings())

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return self.model.dtype

    @property
    def context_length(self) -> int | None:
        """The most tokens a text may have, where the model's configuration says it.

        With LongRoPE (Phi-3) so many as the short factors are for: a longer row would change the rotary frequencies of
        all rows that run with it, and would not fit what a cache holds.
        """
        config = self.model.config.get_text_config()
        rope = getattr(config, "rope_parameters", None) or {}
        kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, Mapping))]
        short = [int(kind["original_max_position_embeddings"]) for kind in kinds if kind.get("rope_type") == "longrope"]
        for name in ("max_position_embeddings", "n_positions", "seq_length"):
            if getattr(config, name, None) is not None:
                return min([int(getattr(config, name)), *short])
        return None

    def memory(self, layer: int, expert: int | Literal["shared"] | None = None) -> FFNMemory:
        """The feed-forward network of a layer as a key-value memory.

        Args:
            layer: which; negative numbers count from the end.
            expert: which expert, where the layer is a mixture of them: its number, or "shared" for the one that every
                token goes through. None for the whole layer; of a mixture only the output is then there
                (`corrigenda.models.experts`).

        Raises:
            IndexError: there is no such layer or expert.
            TypeError: one of them is no whole number.
            UnsupportedModelError: an expert of a layer that has none.
        """
        return memory_of(self.architecture, layer, expert)

    # -- text

    @property
    def pad_id(self) -> int:
        """A token to pad with; it is always masked, so which one does not matter."""
        for token in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if token is not None and int(token) < self._n_embedded:
                return int(token)
        return 0

    @property
    def _n_embedded(self) -> int:
        """How many tokens have an embedding."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @functools.cached_property
    def end_ids(self) -> frozenset[int]:
        """The tokens at which the model ends a text."""
        config = self.model.config  # of a model that reads images, too, the part of the text may alone have it
        ids = {self.tokenizer.eos_token_id}
        for settings in (getattr(self.model, "generation_config", None), config, config.get_text_config()):
            value = getattr(settings, "eos_token_id", None)
            ids.update(value if isinstance(value, (list, tuple)) else [value])
        return frozenset(int(token) for token in ids if token is not None)

    @property
    def least(self) -> list[int]:
        """The shortest row that the model can be run on; which token it holds does not matter."""
        return [self.pad_id] if self.parts is None else [self.pad_id, self.parts.border]

    def is_end(self, token: int) -> bool:
        """Whether a token ends a text."""
        return token in self.end_ids

    def ends_answer(self, token: int) -> bool:
        """Whether a token ends an answer: the end token, or one with a line break."""
        return self.is_end(token) or "\n" in self.tokenizer.decode([token])

    def is_kept(self, token: int) -> bool:
        """Whether a token at which a text ends has some of it before its line break; "()" and one may be a token."""
        line, line_break, _ = self.text([token]).partition("\n")
        return bool(line_break and line.strip()) and not self.is_end(token)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of generated tokens, without special ones."""
        known = [token for token in tokens if token < self._n_embedded] if self.parts else list(tokens)
        return str(self.tokenizer.decode(known, skip_special_tokens=True))

    def continuation(self, tokens: Sequence[int]) -> str:
        """The text of generated tokens as it follows their prompt.

        SentencePiece's decoders take the space from the beginning of a text, also where the text goes on.
        """
        text = self.text(tokens)
        if self.parts is not None or not tokens or text.startswith(" "):
            return text
        return f" {text}" if str(self.tokenizer.convert_ids_to_tokens(tokens[0])).startswith("▁") else text

    def batch(self, sequences: Iterable[Sequence[int]], prompts: Sequence[int] | None = None) -> TokenBatch:
        """Token sequences as a batch on the model's device; `prompts` says how many tokens of each are its prompt.

        Raises:
            ContextLengthError: one is longer than the model reads.
            RuntimeError: torch computes in another precision (`models.condition.settle`).
            ValueError: no sequence, an empty one, or one with a token that the model does not embed.
        """
        settle(self.model, self.name)
        rows, room = list(sequences), self.context_length
        for ids in rows:
            if room is not None and len(ids) > room:
                self.require_room(len(ids), f"the text {quoted(self.text(ids[:40]))}")
            if len(ids) and not 0 <= max(ids) < self._n_embedded + (self.parts is not None):
                raise ValueError(
                    f"token {max(ids)} ({quoted(self.text([max(ids)]))}) has no embedding in {self.name}, which "
                    f"embeds {self._n_embedded} tokens; the tokenizer is another model's, or has tokens added"
                )
        return pad(rows, self.pad_id, self.device, prompts)

    def require_room(self, n_tokens: int, what: str) -> None:
        """Refuses `what` is longer than the model reads, before anything is computed for it (ContextLengthError)."""
        room = self.context_length
        if room is not None and n_tokens > room:
            raise ContextLengthError(
                f"{what} has {n_tokens} tokens, and {self.name} reads at most {room}; shorten it", n_tokens, room
            )

    # -- identity

    _marks: Mapping[str, Mark]
    """Of the parameters as they were when they were last known to be the fingerprint's."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the architecture's name and of every weight as it was before any edit.

        Equal for equal weights in the same precision, wherever they were loaded from. It is taken once; `cache_key`
        looks whether they are still the same.
        """
        self._marks = self._taken_marks()
        return self._weights_hash()

    @property
    def cache_key(self) -> str:
        """What is kept on disk goes by it: the fingerprint, with how the model computes and how text becomes tokens.

        Equal weights answer differently with another window, activation or number of experts for a token, and with a
        tokenizer that puts something else before a text.

        Raises:
            WrongModelError: a weight was changed by hand since the fingerprint was taken: what is kept is not of it.
        """
        fingerprint, now = self.fingerprint, self._taken_marks()
        if changed := {name for name, mark in now.items() if mark != self._marks.get(name)}:
            self._require_as_loaded(changed)
            self._marks = now
        parts = [fingerprint, computing_hash(self.model.config), self._reading]
        if self.parts is not None:  # its answers begin with what its weights do not say
            parts.append(str(self.parts.beginning))
        return xxhash.xxh3_128(" ".join(parts).encode()).hexdigest()

    @property
    def answers_key(self) -> str:
        """`cache_key`, with what free answers go by beside: the tokens that end them, and the chat template."""
        return f"{self.cache_key}{sorted(self.end_ids)}{self.tokenizer.chat_template}"

    @functools.cached_property
    def _reading(self) -> str:
        return tokenizer_hash(self.tokenizer)

    def _taken_marks(self) -> dict[str, Mark]:
        """By parameter what changes when somebody writes into it, or puts another in its place."""
        return {
            name: (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version, tensor.dtype, _sample(tensor))
            for name, tensor in self.model.named_parameters()
        }

    def _require_as_loaded(self, changed: Set[str]) -> None:
        """Checks parameters into which something was written: it may be what was there, or moved to another device."""
        known = dict(self.loaded_hashes)
        same = self._weights_hash() == self.fingerprint
        self.loaded_hashes.update(known)
        if not same:
            raise changed_by_hand(self.name, changed)

    def _values_of(self) -> dict[str, int]:
        """The layers of the parameters that hold values, by their names in the model."""
        found = {}
        for layer in range(self.n_layers):
            path = self.architecture.values_path(layer)
            found[path if self.architecture.experts(layer) else f"{path}.weight"] = layer
        return found

    @functools.cached_property
    def loaded_hashes(self) -> dict[Place, str]:
        """By place the hash of its values (`values_hash`) when the fingerprint was taken; empty before."""
        return {}

    def places(self, layer: int) -> list[Place]:
        """Where a layer has matrices of values: one; or one for each expert."""
        memory = self.memory(layer)
        if isinstance(memory, MixtureMemory):
            return [(memory.layer, expert) for expert in range(memory.n_experts)]
        return [memory.layer]

    def memory_at(self, place: Place) -> FFNMemory:
        """The memory of a layer, or of an expert in it."""
        return self.memory(place) if isinstance(place, int) else self.memory(*place)

    def values_hash(self, place: Place) -> str:
        """A hash of the values of a place as they are now: of its bytes, so that nothing escapes it."""
        return xxhash.xxh3_128(bytes_of(self.memory_at(place).weight)).hexdigest()

    def _weights_hash(self) -> str:
        layers = self._values_of()
        digest = xxhash.xxh3_128(self.model.config.model_type.encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            if tensor.is_meta:
                tensor = stored(self.model, name)
            digest.update(named(name, tensor.dtype, tensor.shape))
            content = bytes_of(tensor)
            digest.update(content)
            if name in layers and self.architecture.experts(layers[name]):
                for expert, part in enumerate(tensor):
                    self.loaded_hashes[layers[name], expert] = xxhash.xxh3_128(bytes_of(part)).hexdigest()
            elif name in layers:
                self.loaded_hashes[layers[name]] = xxhash.xxh3_128(content).hexdigest()
        return digest.hexdigest()


def first_line(text: str) -> str:
    """A text up to its first line break."""
    return text.partition("\n")[0]


def _sample(tensor: torch.Tensor) -> bytes:
    """Some 256 of a tensor's numbers, from end to end; none where it has none yet."""
    if tensor.is_meta:
        return b""
    numbers = tensor.detach().reshape(-1)
    return bytes(numbers[:: max(1, len(numbers) // 256)].cpu().contiguous().view(torch.uint8).numpy())


def changed_by_hand(model: str, parameters: Collection[str]) -> WrongModelError:
    """What is said where nothing that is kept on disk is of the weights as they are."""
    some = ", ".join(sorted(parameters)[:3]) + (", ..." if len(parameters) > 3 else "")
    return WrongModelError(
        f"the weights of {model} were changed by hand since its fingerprint was taken ({some}), so nothing that is "
        "kept on disk is of them; load the model again, or make a new LanguageModel of it"
    )
