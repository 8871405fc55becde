"""`SharedStart`: what all of many prompts begin with (the same hundred facts, say), run once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from corrigenda.forward.partial import PartialForward, Recording, forward_logits, record
from corrigenda.models.bare import BareModel
from corrigenda.prompts import TokenBatch, in_common

LEAST = 32
"""Fewer tokens in common are run again with each prompt: that costs less than to go on from a cache."""
ROOM = 8
"""So many cached tokens count as one that is run: nothing is computed for them, but their keys and values take room."""


class SharedStart:
    """The tokens that all of some sequences begin with, and their attention cache.

    Args:
        lm: the model as it is now; a change of it makes this out of date.
        sequences: the tokens of all prompts that will be run. At least the last token of each is its own.
    """

    def __init__(self, lm: BareModel, sequences: Sequence[Sequence[int]]) -> None:
        self._lm = lm
        self._recording: Recording | None = None
        # Routed edits decide on whole prompts: rows that begin alike may go different ways from their first token on.
        routed = lm.routing.active
        if len(sequences) > 1 and lm.architecture.family.causal and not routed:
            length = in_common(sequences, min(map(len, sequences)) - 1)
            if length >= LEAST:
                recording = record(lm, lm.batch([sequences[0][:length]]), [])
                self._recording = recording if recording.cache is not None else None

    @property
    def length(self) -> int:
        """How many tokens are shared; 0 where it is too few to matter, or the model cannot go on from a cache."""
        return 0 if self._recording is None else int(self._recording.batch.lengths[0])

    def weight(self, n_tokens: int) -> int:
        """As how many tokens a sequence counts where a batch must not have too many."""
        return n_tokens - self.length + self.length // ROOM

    def record(self, batch: TokenBatch, logits_at: Tensor) -> Recording:
        """The batch's recording, of no layer's states: `partial.record` without running the start again."""
        if self._recording is None:
            return record(self._lm, batch, [], logits_at)
        return self._forward(self._recording, batch).record([], logits_at)

    def logits(self, batch: TokenBatch, at: Tensor) -> Tensor:
        """The logits at positions of the whole rows (`positions.At`): `partial.forward_logits`, likewise."""
        if self._recording is None:
            return forward_logits(self._lm, batch, at)
        forward = self._forward(self._recording, batch)
        return forward.logits(forward.local(at))

    def before_decoding(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, DynamicCache]:
        """What a decoding of some of the prompts starts with.

        Returns:
            the tokens still to run (n, width), padded on the left; the mask over the cache and them; the cache. Rows
            end together, so that the next token stands at the same place in each.
        """
        lengths = [len(prompt) for prompt in prompts]
        width = max(lengths) - self.length
        if self._recording is not None and min(lengths) >= width:
            # Shorter prompts run some of the start again: no padding comes between the start and what follows it.
            batch = self._lm.batch(prompts)
            forward = self._forward(self._recording, batch, batch.lengths - width)
            return forward.before_running()
        width = max(lengths)
        ids = torch.full((len(prompts), width), self._lm.pad_id, device=self._lm.device)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.as_tensor(prompt, device=self._lm.device)
            mask[row, width - len(prompt) :] = 1
        return ids, mask, DynamicCache()

    def _forward(self, recording: Recording, batch: TokenBatch, start: Tensor | None = None) -> PartialForward:
        start = torch.full_like(batch.lengths, self.length) if start is None else start
        return PartialForward(self._lm, recording, 0, start, torch.zeros_like(batch.lengths), batch)
