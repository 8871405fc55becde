"""Short texts put before a prompt while an edit is computed, so that it holds in more contexts than one."""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from corrigenda import LanguageModel
from corrigenda.data.embedded import shipped_text
from corrigenda.errors import SettingsError
from corrigenda.moments.text import Text, sample
from corrigenda.prompts import encode_plain

_SENTENCE = re.compile(r"[A-Z][^.!?\"\n]*\.(?= [A-Z])")


def require_prefixes(editor: object, prefixes: Sequence[str] | None) -> None:
    """Raises SettingsError where contexts are given to an editor, and there are none."""
    if prefixes is not None and not prefixes:
        raise SettingsError(f'{type(editor).__name__}: prefixes=() must hold at least one text: "" is the bare prompt')


def contexts(
    lm: LanguageModel,
    lengths: Sequence[tuple[int, int]],
    text: Text,
    seed: int = 0,
    prefixes: Sequence[str] | None = None,
) -> list[str]:
    """The empty context, then short texts that end in ". ": sentences that ship, or sampled from the model.

    Where the text of second moments is sampled from the model, they are, too (from its 5 most likely tokens, as ROME's
    authors do), and kept on disk; `lengths` are pairs of a length in tokens and how many contexts of that length. The
    seed is for both; `prefixes` are taken instead, as they are. Raises SettingsError: the text that ships is too short
    for so many.
    """
    if prefixes is not None:
        return list(prefixes)
    found, source = [""], text.fitting(lm).source
    for length, number in lengths:
        if source == "self":
            sampled = Text("self", tokens=length * number, length=length, seed=seed, top_k=5)
            found += [f"{' '.join(lm.text(tokens).splitlines())}. " for tokens in sample(lm, sampled, "contexts")]
        else:
            drawn = list(itertools.islice(_sentences(lm, length, seed), number))
            if len(drawn) < number:
                raise SettingsError(
                    f"prefix_lengths: the text that ships has {len(drawn)} contexts of {length} tokens, and "
                    f"{number} were asked for; ask for fewer, or give text.source=self"
                )
            found += drawn
    return found


@lru_cache(4)
def _order(seed: int) -> tuple[str, ...]:
    """The sentences of the text that ships, in a drawn order: an edit asks for its contexts several times."""
    found = _SENTENCE.findall(shipped_text())
    random.Random(seed).shuffle(found)
    return tuple(found)


def _sentences(lm: LanguageModel, length: int, seed: int) -> Iterator[str]:
    """Whole sentences of so many tokens in a drawn order, the beginnings of longer ones, and pieces of all in a row."""
    order = _order(seed)
    longer = []
    for sentence in dict.fromkeys(order):
        tokens = encode_plain(lm.tokenizer, sentence)
        if len(tokens) == length:
            yield f"{sentence} "
        elif len(tokens) > length:
            longer.append(tokens[: length - 1])
    yield from (f"{lm.text(tokens)}. " for tokens in longer)
    row, size = encode_plain(lm.tokenizer, " ".join(order)), max(1, length - 1)
    yield from (f"{lm.text(row[begin : begin + size])}. " for begin in range(0, len(row) - size + 1, size))
