"""Beginnings that token sequences share, run once for all of them: in one batch, or of all prompts of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import Recording, forward_logits, record, routes_of
from corrigenda.models.bare import BareModel
from corrigenda.models.encoder_decoder import Encoded
from corrigenda.prompts import TokenBatch, in_common, shared_heads

LEAST = 32
"""Fewer tokens in common are run again with each prompt: that costs less than to go on from a cache."""
ROOM = 8
"""So many cached tokens count as one that is run: nothing is computed for them, but their keys and values take room."""


class Beginnings:
    """Some token sequences, run once, and the forwards of longer ones that begin with them.

    Later partial forwards start at `layers` and run up to `until`; None for the model's last. A change of the model
    makes this out of date.
    """

    def __init__(
        self, lm: BareModel, heads: Sequence[Sequence[int]], layers: Collection[int] = (), until: int | None = None
    ) -> None:
        self._lm = lm
        self._recording = record(lm, lm.batch(heads), layers, until=until)

    @staticmethod
    def useful(lm: BareModel) -> bool:
        """Whether rows that begin alike go the same way there.

        They do not in a masked model or where an encoder reads the prompt: what follows acts on what is before. And
        routed edits decide on whole prompts, so that rows may go different ways from their first token on.
        """
        return lm.architecture.goes_on and not lm.routing.active

    @property
    def goes_on(self) -> bool:
        """Whether the model can go on from them, and not only run whole rows."""
        return self._recording.cache is not None

    def rest(
        self, batch: TokenBatch, start: Tensor, owners: Tensor, layer: int = 0, states: Tensor | None = None
    ) -> PartialForward:
        """The forward of what rows do not share, from `layer` on, with what enters it where it is not the lowest.

        `start`, (row,), is how many of each row's first tokens are not run again, `owners`, (row,), which of the
        sequences gives them; `states` are (row, local position, d_model).
        """
        return PartialForward(self._lm, self._recording, layer, start, owners, batch, routes_of(batch), states)


@dataclass(frozen=True)
class Shares:
    """Sequences that rows of a batch begin with; which of them each begins with, and with how many tokens, (row,)."""

    heads: Sequence[Sequence[int]]
    owners: Tensor
    start: Tensor

    @classmethod
    def of(cls, lm: BareModel, batch: TokenBatch, limit: Tensor | None = None) -> Shares:
        """Finds them; from the position `limit`, (row,), on nothing of a row is shared, by default its last."""
        sequences = [ids[:n].tolist() for ids, n in zip(batch.input_ids, batch.lengths.tolist(), strict=True)]
        heads: list[list[int]] = []
        if Beginnings.useful(lm):
            limit = batch.lengths - 1 if limit is None else limit
            heads, owners, lengths = shared_heads(sequences, limit.tolist())
        if not heads:
            heads, owners, lengths = [sequences[0][:1]], [0] * len(sequences), [0] * len(sequences)
        device = batch.lengths.device
        return cls(heads, torch.tensor(owners, device=device), torch.tensor(lengths, device=device))

    @property
    def saved(self) -> int:
        """How many tokens fewer are run."""
        return int(self.start.sum()) - sum(map(len, self.heads)) if bool(self.start.any()) else 0

    def rest(self, lm: BareModel, batch: TokenBatch, layers: Collection[int] = ()) -> PartialForward:
        """Runs the beginnings, and prepares the forward of what the rows do not share."""
        return Beginnings(lm, self.heads, layers).rest(batch, self.start, self.owners)


@torch.no_grad()
def record_shared(
    lm: BareModel, batch: TokenBatch, layers: Collection[int], limit: Tensor | None = None
) -> PartialForward:
    """Runs what several rows of a batch begin with once for all of them, and prepares the forward of the rest.

    That is a partial forward from layer 0, whose `record` gives the whole batch's recording; later ones start at
    `layers`. `limit` as in `Shares.of`.
    """
    return Shares.of(lm, batch, limit).rest(lm, batch, layers)


class SharedStart:
    """The tokens that all of some sequences begin with, and their attention cache.

    At least the last token of each is its own. A change of the model makes this out of date.
    """

    def __init__(self, lm: BareModel, sequences: Sequence[Sequence[int]]) -> None:
        self._lm = lm
        self._shared: Beginnings | None = None
        self.length = 0
        """How many tokens are shared; 0 where it is too few to matter, or the model cannot go on from a cache."""
        if len(sequences) > 1 and Beginnings.useful(lm):
            length = in_common(sequences, min(map(len, sequences)) - 1)
            if length >= LEAST:
                shared = Beginnings(lm, [sequences[0][:length]])
                if shared.goes_on:
                    self._shared, self.length = shared, length

    def weight(self, n_tokens: int) -> int:
        """As how many tokens a sequence counts where a batch must not have too many."""
        return n_tokens - self.length + self.length // ROOM

    def record(self, batch: TokenBatch, logits_at: Tensor) -> Recording:
        """The batch's recording, of no layer's states: `recording.record`; what rows begin with in common runs once."""
        if self._shared is not None:
            return self._rest(self._shared, batch).record([], logits_at)
        shares = Shares.of(self._lm, batch)
        if shares.saved < LEAST:
            return record(self._lm, batch, [], logits_at)
        return shares.rest(self._lm, batch).record([], logits_at)

    def logits(self, batch: TokenBatch, at: Tensor) -> Tensor:
        """The logits at positions of the whole rows (`positions.At`): `recording.forward_logits`, likewise."""
        if self._shared is None:
            return forward_logits(self._lm, batch, at)
        forward = self._rest(self._shared, batch)
        return forward.logits(forward.local(at))

    def before_decoding(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, DynamicCache | Encoded]:
        """What a decoding of some of the prompts starts with: the tokens still to run, the mask over all, the cache.

        Tokens are (n, width), padded on the left: rows end together, so that the next token stands at the same place in
        each. Of an encoder-decoder they are the decoder's: the encoder has read the prompts.
        """
        lengths = [len(prompt) for prompt in prompts]
        width = max(lengths) - self.length
        if self._shared is not None and min(lengths) >= width:
            # Shorter prompts run some of the start again: no padding comes between the start and what follows it.
            batch = self._lm.batch(prompts)
            return self._rest(self._shared, batch, batch.lengths - width).before_running()
        if self._lm.parts is not None:
            return self._lm.parts.encoded(prompts, self._lm.device)
        width = max(lengths)
        ids = torch.full((len(prompts), width), self._lm.pad_id, device=self._lm.device)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.as_tensor(prompt, device=self._lm.device)
            mask[row, width - len(prompt) :] = 1
        return ids, mask, DynamicCache()

    def _rest(self, shared: Beginnings, batch: TokenBatch, start: Tensor | None = None) -> PartialForward:
        start = torch.full_like(batch.lengths, self.length) if start is None else start
        return shared.rest(batch, start, torch.zeros_like(batch.lengths))
