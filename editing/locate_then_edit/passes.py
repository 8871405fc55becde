"""Keys and outputs of many facts on the model as it is now: what is measured anew before each layer is written.

The rows end with the subject's last token, and run no further than the layer that is looked at: what comes after
either does not matter to it. What rows begin with in common, the contexts above all, runs once for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.shared import record_shared
from corrigenda.models import sites
from editing.locate_then_edit.keys import mean_over_contexts
from editing.locate_then_edit.prompts import Prompts
from editing.locate_then_edit.targets import Site

TOKENS = 4096
"""So many tokens, padding included, are run at once at most."""


class SubjectRows:
    """The prompts of many facts, cut after the subject's last token.

    Args:
        lm: the model.
        batches: the prompts, facts in order.
    """

    def __init__(self, lm: LanguageModel, batches: Sequence[Prompts]) -> None:
        self._rows: list[list[int]] = []
        self._at: list[int] = []
        fact, prefix, bare = [], [], []
        n_facts = 0
        cut = lm.architecture.family.causal  # else what follows acts on what is before
        for prompts in batches:
            firsts = set(prompts.bare.tolist())
            for row in prompts.rewriting.nonzero()[:, 0].tolist():
                at = int(prompts.subject[row])
                if row in firsts:
                    bare.append(len(self._rows))
                self._rows.append(
                    prompts.batch.input_ids[row, : at + 1 if cut else int(prompts.batch.lengths[row])].tolist()
                )
                self._at.append(at)
                fact.append(n_facts + int(prompts.fact[row]))
                prefix.append(int(prompts.prefix[row]))
            n_facts += prompts.n_facts
        self._fact, self._prefix = torch.tensor(fact), torch.tensor(prefix)
        self._bare = bare
        self.n_facts = n_facts

    def keys(self, lm: LanguageModel, layer: int, weights: Tensor) -> Tensor:
        """Each fact's mean key at a layer, (fact, d_ffn), float32 on the CPU; weights as in `keys.mean_keys`."""
        rows = self._taken(lm, sites.Site("coefficients", layer), range(len(self._rows)))
        return mean_over_contexts(rows, self._fact, self._prefix, self.n_facts, weights)

    def outputs(self, lm: LanguageModel, layer: int, site: Site) -> Tensor:
        """What comes out on each fact's first row (its bare prompt), (fact, d_model), float32 on the CPU.

        Args:
            lm: the model.
            layer: of which layer.
            site: of the block, or else of the feed-forward network.
        """
        return self._taken(lm, sites.Site("block" if site == "block" else "ffn", layer), self._bare)

    @torch.no_grad()
    def _taken(self, lm: LanguageModel, site: sites.Site, which: Collection[int]) -> Tensor:
        """What is at a site at the subject's last token of some rows, (row, width)."""
        assert site.layer is not None
        found: dict[int, Tensor] = {}
        for group in self._groups(which):
            batch = lm.batch([self._rows[row] for row in group])
            at = torch.tensor([self._at[row] for row in group], device=lm.device)
            forward = record_shared(lm, batch, [], limit=at)
            with intervene(lm, site, Read(), forward.local(at)) as seen:
                if site.layer + 1 < lm.n_layers:
                    forward.states_entering(site.layer + 1)
                else:
                    forward.logits(forward.local(at))
            found |= dict(zip(group, seen.value.float().cpu(), strict=True))
        return torch.stack([found[row] for row in which])

    def _groups(self, which: Collection[int]) -> list[list[int]]:
        """The rows in groups of about the same length."""
        groups: list[list[int]] = [[]]
        for row in sorted(which, key=lambda row: len(self._rows[row]), reverse=True):
            if groups[-1] and len(self._rows[groups[-1][0]]) * (len(groups[-1]) + 1) > TOKENS:
                groups.append([])
            groups[-1].append(row)
        return groups
