"""Outlier states: tokens that an edit must not be computed at.

In most models a few tokens have states many times as large as all others (massive activations, attention sinks: Sun et
al. 2024, "Massive Activations in Large Language Models"), often a text's first. A key taken there is that of every
text's beginning, and an update along it changes every text.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Read, Reading, intervene
from corrigenda.forward.recording import forward_to
from corrigenda.models.sites import Site
from corrigenda.prompts import TokenBatch

OUTLIER = 3.0
"""A state of more than so many times the usual norm is an outlier. Of 2,000 CounterFact facts in 6 contexts (without
first tokens), SmolLM2 has after layer 3 eleven with 3.3 to 10 times the median, all of bare prompts; the others have up
to 2.5 times."""

WHY = (
    "the state at the token it would be written at is an outlier against its text's others (a massive activation), and "
    "an edit there changes every text; put some words before its prompt"
)
"""Why a fact is refused that has no other context."""


def outliers(norms: Sequence[Tensor], at: Sequence[int]) -> list[bool]:
    """Whether the state at a position of each of a fact's texts is an outlier, after any of the layers.

    Norms are (layer, position). They are held against the median over all of the fact's texts but for their first
    tokens. So what is said of a fact depends on no other.
    """
    others = torch.cat([one[:, 1:] for one in norms], dim=1)
    if not others.shape[1]:  # texts of one token each
        return [False] * len(norms)
    most = OUTLIER * others.median(1).values
    return [bool((one[:, position] > most).any()) for one, position in zip(norms, at, strict=True)]


@contextmanager
def reading_states(lm: LanguageModel, layers: Collection[int]) -> Iterator[list[Reading]]:
    """Sees the states after some layers, at all positions, in the forward inside the block."""
    with ExitStack() as stack:
        yield [stack.enter_context(intervene(lm, Site("block", layer), Read())) for layer in layers]


def norms_of(seen: Sequence[Reading], lengths: Sequence[int]) -> list[Tensor]:
    """The norms of states that were seen, of each row (layer, position), without padding; in float32."""
    norms = torch.stack([one.value.detach().float().norm(dim=-1) for one in seen])
    return [norms[:, row, :length] for row, length in enumerate(lengths)]


def state_norms(lm: LanguageModel, batch: TokenBatch, layers: Collection[int]) -> list[Tensor]:
    """The norms of the states after some layers, of each row (layer, position), float32 on the CPU."""
    with reading_states(lm, layers) as seen:
        forward_to(lm, batch, max(layers))
    return [norms.cpu() for norms in norms_of(seen, batch.lengths.tolist())]
