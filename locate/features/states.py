"""What enters and leaves a layer's FFN over running text, which dictionaries are trained and measured on."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.recording import forward_to
from corrigenda.prompts import TokenBatch

TOKENS = 2048
"""So many tokens are run at once."""


@torch.no_grad()
def ffn_states(lm: LanguageModel, layer: int, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """The FFN's input and its output, each (batch, position, d_model)."""
    seen: list[tuple[Tensor, Tensor]] = []
    with lm.memory(layer).respond(lambda given, output: seen.append((given.clone(), output.clone()))):
        forward_to(lm, batch, layer)
    return seen[0]


def batches(sequences: Sequence[Sequence[int]], tokens: int = TOKENS) -> Iterator[Sequence[Sequence[int]]]:
    """Some sequences at once, all of one length, of about so many tokens."""
    rows = max(1, tokens // max(len(sequences[0]), 1))
    return (sequences[begin : begin + rows] for begin in range(0, len(sequences), rows))
