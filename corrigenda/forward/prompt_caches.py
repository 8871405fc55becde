"""Attention caches of prompts that were run, so that a decoding goes on from them and runs nothing again."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from corrigenda.forward.partial import cache_of
from corrigenda.forward.recording import Recording
from corrigenda.forward.shared import Beginnings
from corrigenda.models.bare import BareModel


class PromptCaches:
    """The attention caches of some prompts; a change of the model makes this out of date."""

    def __init__(self, lm: BareModel, prompts: Collection[Sequence[int]]) -> None:
        self._lm = lm
        self._missing = set(map(tuple, prompts)) if Beginnings.useful(lm) else None
        self._found: dict[tuple[int, ...], tuple[int, list[tuple[Tensor, Tensor]]]] = {}

    @property
    def complete(self) -> bool:
        """Whether all prompts can be gone on from: none where the model cannot, or their rows go different ways."""
        return self._missing is not None and not self._missing

    def add(self, recording: Recording) -> None:
        """Keeps the rows of a recording that are wanted."""
        if not self._missing or recording.cache is None:
            return
        batch = recording.batch
        rows = [tuple(ids[:n].tolist()) for ids, n in zip(batch.input_ids, batch.lengths.tolist(), strict=True)]
        wanted = [row for row, prompt in enumerate(rows) if prompt in self._missing]
        if not wanted:
            return
        width = max(len(rows[row]) for row in wanted)
        cut = [(keys[wanted, :, :width], values[wanted, :, :width]) for keys, values in recording.cache]
        for place, row in enumerate(wanted):
            self._found[rows[row]] = place, cut
            self._missing.discard(rows[row])

    def before_decoding(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, DynamicCache]:
        """What a decoding of some of the prompts starts with; as `SharedStart.before_decoding`, each row's last token.

        Raises:
            KeyError: the cache of a prompt is not kept.
        """
        kept = [self._found[tuple(prompt)] for prompt in prompts]
        lengths = [len(prompt) - 1 for prompt in prompts]
        width = max(lengths)
        pairs = []
        for layer in range(self._lm.n_layers):
            both = []
            for part in (0, 1):
                one = kept[0][1][layer][part]
                whole = one.new_zeros(len(prompts), one.shape[1], width, one.shape[3])
                for row, ((place, cut), length) in enumerate(zip(kept, lengths, strict=True)):
                    whole[row, :, width - length :] = cut[layer][part][place, :, :length]
                both.append(whole)
            pairs.append((both[0], both[1]))
        device = self._lm.device
        begins = width - torch.tensor(lengths, device=device)
        mask = (torch.arange(width + 1, device=device) >= begins[:, None]).long()
        ids = torch.tensor([[prompt[-1]] for prompt in prompts], device=device)
        return ids, mask, cache_of(pairs) if width else DynamicCache()
