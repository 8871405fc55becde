"""Short texts put before a prompt while an edit is computed, so that it holds in more contexts than one."""

from __future__ import annotations

from collections.abc import Sequence

from corrigenda import LanguageModel
from corrigenda.moments.text import Text, sample


def sampled_prefixes(lm: LanguageModel, lengths: Sequence[tuple[int, int]], seed: int = 0) -> list[str]:
    """The empty prefix, then texts sampled from the model (from its 5 most likely tokens, as ROME's authors do).

    Args:
        lm: the model; the texts are kept on disk, so only the first call samples.
        lengths: pairs of a length in tokens and how many prefixes to sample of that length.
        seed: for sampling.

    Returns:
        prefixes that end in ". ", ready to stand before a prompt; the first is "".
    """
    prefixes = [""]
    for length, number in lengths:
        text = Text(tokens=length * number, length=length, seed=seed, top_k=5)
        for tokens in sample(lm, text, "contexts"):
            words = lm.text(tokens)
            prefixes.append(" ".join(words.splitlines()) + ". ")
    return prefixes
