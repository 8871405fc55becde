"""Keys and outputs of many facts on the model as it is now: what is measured anew before each layer is written.

Rows end with the subject's last token (`Prompts.beginning`), run no further than the layer that is looked at, and go on
from the layer of the measurement before (`corrigenda.forward.climbing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.climbing import Climb
from corrigenda.models import sites
from editing.locate_then_edit.keys import mean_over_contexts
from editing.locate_then_edit.prompts import Prompts
from editing.locate_then_edit.targets import Site

TOKENS = 4096
"""So many tokens, padding included, are run at once at most."""


class SubjectRows:
    """The prompts of many facts, cut after the subject's last token where nothing behind it matters."""

    def __init__(self, lm: LanguageModel, batches: Sequence[Prompts]) -> None:
        self._rows: list[list[int]] = []
        self._at: list[int] = []
        fact, prefix, bare = [], [], []
        n_facts = 0
        for prompts in batches:
            firsts = set(prompts.bare.tolist())
            for row in prompts.rewriting.nonzero()[:, 0].tolist():
                at = int(prompts.subject[row])
                if row in firsts:
                    bare.append(len(self._rows))
                self._rows.append(prompts.beginning(lm, row))
                self._at.append(at)
                fact.append(n_facts + int(prompts.fact[row]))
                prefix.append(int(prompts.prefix[row]))
            n_facts += prompts.n_facts
        self._fact, self._prefix = torch.tensor(fact), torch.tensor(prefix)
        self._bare = bare
        self.n_facts = n_facts
        self._groups = [self._group(lm, rows) for rows in self._of_like_length()]

    def measured(self, lm: LanguageModel, layer: int, aim: int, site: Site, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Each fact's mean key at a layer, and what comes out at `aim`, there or above, on its first (bare) row.

        (fact, d_ffn), of a mixture (fact, width) (`MixtureMemory.width`), and (fact, d_model), float32 on the CPU; of
        the block, or of the feed-forward network. Layers are measured from the bottom: nothing below the one that was
        measured last may have changed since. Raises ValueError: the layer lies below one that was measured before.
        """
        beyond = sites.Site("block" if site == "block" else "ffn", aim)
        width = lm.memory(layer).width
        keys: dict[int, Tensor] = {}
        outputs: dict[int, Tensor] = {}
        for group in self._groups:
            found, further = group.climb.look(layer, beyond, torch.tensor(group.bare, dtype=torch.long))
            keys |= dict(zip(group.rows, found[:, :width].float().cpu(), strict=True))
            outputs |= dict(zip([group.rows[place] for place in group.bare], further.float().cpu(), strict=True))
        of_rows = torch.stack([keys[row] for row in range(len(self._rows))])
        mean = mean_over_contexts(of_rows, self._fact, self._prefix, self.n_facts, weights)
        return mean, torch.stack([outputs[row] for row in self._bare])

    def _group(self, lm: LanguageModel, rows: Sequence[int]) -> _Group:
        batch = lm.batch([self._rows[row] for row in rows])
        bare = set(self._bare)
        at = torch.tensor([self._at[row] for row in rows], device=lm.device)
        return _Group(rows, [place for place, row in enumerate(rows) if row in bare], Climb(lm, batch, at))

    def _of_like_length(self) -> list[list[int]]:
        """The rows in groups of about the same length."""
        groups: list[list[int]] = [[]]
        for row in sorted(range(len(self._rows)), key=lambda row: len(self._rows[row]), reverse=True):
            if groups[-1] and len(self._rows[groups[-1][0]]) * (len(groups[-1]) + 1) > TOKENS:
                groups.append([])
            groups[-1].append(row)
        return groups


@dataclass(frozen=True)
class _Group:
    """Rows that run together: their numbers, which of them (by place) are bare prompts, and how far they have run."""

    rows: Sequence[int]
    bare: Sequence[int]
    climb: Climb
