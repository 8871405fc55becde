"""Texts as vectors of length 1, so that the nearest of many can be found.

| name | what it is |
|---|---|
| `states` | the model's own states, as a gate maps them (`corrigenda.edits.gate`): near are prompts that ask the same |
| `wordllama` | mean vectors of tokens, which come with the package of this name (`corrigenda[retrieval]`) |
| any other | a model that the package sentence-transformers loads by this name, or from this folder |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from corrigenda.edits.gate import Gate, states_of
from corrigenda.errors import SettingsError
from corrigenda.models.bare import BareModel
from corrigenda.prompts import encode

STATES = "states"
WORDLLAMA = "wordllama"

ROWS = 32
"""So many prompts are run at once."""

Encoder = Callable[[BareModel, Sequence[str]], Tensor]
"""The vectors of texts, (text, width), in float32 on the CPU; a model is read as it is."""


def encoder_named(name: str, gate: Gate | None) -> Encoder:
    """What a name of the table stands for; the gate maps the states, for `states`.

    Raises ImportError: a package that it needs is not installed; SettingsError: there is no such encoder.
    """
    if name == STATES:
        if gate is None:
            raise SettingsError(f"encoder={STATES}: there is no gate that maps the model's states")
        return _of_states(gate)
    embed = text_encoder(name)
    return lambda _lm, texts: embed(texts)


@cache
def text_encoder(name: str) -> Callable[[Sequence[str]], Tensor]:
    """What a name of the table stands for that reads no model: the vectors of texts, (text, width).

    Raises:
        ImportError: a package that it needs is not installed.
        SettingsError: there is no such encoder.
    """
    embed = _wordllama() if name == WORDLLAMA else _sentence_transformer(name)
    return lambda texts: functional.normalize(torch.as_tensor(embed(list(texts))).float().cpu(), dim=1)


def _of_states(gate: Gate) -> Encoder:
    def embed(lm: BareModel, texts: Sequence[str]) -> Tensor:
        found = torch.empty(len(texts), gate.width)
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        for begin in range(0, len(order), ROWS):
            rows = order[begin : begin + ROWS]
            batch = lm.batch([encode(lm.tokenizer, texts[row]) for row in rows])
            with lm.routing.unwatched():
                found[rows] = gate.embed(states_of(lm, gate.layers, batch)).cpu()
        return found

    return embed


def _wordllama() -> Callable[[list[str]], object]:
    spec, root = find_spec("wordllama"), logging.getLogger()
    if spec is None or spec.origin is None:
        raise ImportError(f"encoder={WORDLLAMA} needs WordLlama: pip install 'corrigenda[retrieval]'")
    before = root.level, root.handlers[:]
    from wordllama import WordLlama

    root.setLevel(before[0])  # it sets up the logging of all when it is imported
    root.handlers[:] = before[1]
    # Of the two files in the package it finds one only where that folder is named as its cache.
    loaded = WordLlama.load(cache_dir=Path(spec.origin).parent, disable_download=True)
    return loaded.embed


def _sentence_transformer(name: str) -> Callable[[list[str]], object]:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise ImportError(
            f"encoder={name}: {STATES} and {WORDLLAMA} are there, and any other is a model of sentence-transformers, "
            "which is not installed: pip install sentence-transformers"
        ) from None
    try:
        return SentenceTransformer(name, device="cpu").encode
    except (OSError, ValueError) as error:
        said = str(error).strip().partition("\n")[0]
        raise SettingsError(
            f"encoder={name}: neither {STATES}, nor {WORDLLAMA}, nor a model that sentence-transformers loads ({said})"
        ) from None
