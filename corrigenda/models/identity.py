"""What makes two models of equal weights answer differently: how they compute, and how text becomes tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


SAYS_NOTHING = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attn_implementation",
        "_attn_implementation",
        "chunk_size_feed_forward",
        "dtype",
        "finetuning_task",
        "id2label",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Entries of a configuration that change no answer, or (the precision) are told by the weights."""


def computing_hash(config: PretrainedConfig) -> str:
    """A hash of what a configuration says of the computing: windows, activations, positions, experts for a token."""
    return _hash(_without(config.to_dict()))


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of how a tokenizer makes tokens of text, with what it puts before and after."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = {} if backend is None else json.loads(backend.to_str())
    for passing in ("padding", "truncation"):  # as the last call left them
        rules.pop(passing, None)
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return _hash([rules or sorted(tokenizer.get_vocab().items()), special, tokenizer("a b")["input_ids"]])


def named(name: str, dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    """What stands before a weight's bytes in a hash of weights."""
    return f"{name} {dtype} {tuple(shape)}".encode()


def _without(found: Any) -> Any:
    """Without what says nothing, also in configurations inside it."""
    if isinstance(found, dict):
        return {str(key): _without(value) for key, value in found.items() if key not in SAYS_NOTHING}
    return [_without(value) for value in found] if isinstance(found, list | tuple) else found


def _hash(found: Any) -> str:
    return xxhash.xxh3_128(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()
