"""`Attached`: the entries of a knowledge base beside the weights, answering by generalized cross-attention.

Guo & Chen 2025, "Decoupling Knowledge and Reasoning in Transformers: A Modular Architecture with Generalized
Cross-Attention": C = f(q k^T / sqrt(d_k) + B1(E)) v, with a view of the entries for each layer and a threshold for each
entry, by which it says "if".

The paper's is this form: the scores, the threshold of each entry's own, f = ReLU (`relu`), and answering with the
nearest entries only. The paper trains such layers from scratch. Ours is how a pretrained model comes by them:

- the entries: k* and v* as they were solved for a fact at the subject's last token. What an entry adds where it speaks
  is v* - k* V, what the layer's own memory lacks at its key. It is added to the FFN, and does not take its place;
- the view: coefficients less their mean, each over its standard deviation, then a random projection to `width` numbers,
  which keeps angles to about 1 / sqrt(width) (Johnson & Lindenstrauss 1984), then the length 1, for queries and keys
  alike. Mean and deviation are of unrelated text;
- the thresholds: `margin` of the way from the highest score that something else has with the entry to the 1 that its
  own key has. Something else is every position of unrelated text (other texts than the view was made of), and every
  entry of another subject. Nothing that is measured has a part in it;
- f = a step by default: what was solved is the whole answer, and paraphrases are to have it as well;
- an entry speaks on the prompt alone (`corrigenda.edits.attached`).

As with all edits at the subject's last token (ROME, MEMIT), an entry cannot tell prompts apart that begin with the
same words up to there: it speaks on every prompt that begins with its subject.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from corrigenda.data.embedded import unrelated_prompts
from corrigenda.data.requests import normalised
from corrigenda.edits.attached import Activation, AttachedEdit, AttachedLayer, viewed
from corrigenda.edits.origin import Origin
from corrigenda.facts import Fact
from corrigenda.forward.recording import forward_to
from corrigenda.indices.index import Index, nearest
from corrigenda.indices.kinds import Kind, index_of
from corrigenda.knowledge.entries import Entry, by_layer, residuals_of
from corrigenda.language_model import LanguageModel
from corrigenda.settings.checked import AtLeastOne, Seed, ShareBelowOne, checked

EXACT = 16384
"""Up to so many entries at a layer ``index="auto"`` looks at all of them."""

LARGE: Kind = "product_keys"
"""The index that ``index="auto"`` takes beyond."""

ROWS = 32
"""Unrelated texts that are run at once."""

SMALLEST = 0.01
"""A coefficient's variance counts at least as this share of the mean over all, so that none that hardly varies in the
unrelated text counts for more than all others."""

FINEST = 1e-4
"""A threshold lies at least so far below 1: an own key has the score 1 but for rounding."""

NEIGHBOURS = 16
"""So many entries are asked for at first when looking for the nearest of another subject."""


@dataclass(frozen=True)
@checked
class Attached:
    """Compiles entries into an `AttachedEdit`; see above for what it computes.

    Attributes:
        unrelated: texts as tokens, about none of the facts, besides the prompts that ship with the project. The more,
            the surer the thresholds; `corrigenda.moments.text.Text.sequences` gives some.
        width: d_k, how many numbers a key has; where the layer has no more neurons than that, nothing is projected.
        margin: how far a threshold lies above the highest score of something else, as a share of the way to 1.
        activation: f.
        index: how the nearest entries are found when the model runs; "auto" looks at all up to `EXACT` of a layer, and
            takes `LARGE` beyond.
        candidates: how many an index proposes, which are then ranked exactly.
        most: how many entries speak at one position, at most.
        seed: of the projection.

    Raises:
        SettingsError: a setting cannot be.
    """

    unrelated: tuple[tuple[int, ...], ...] = ()
    width: AtLeastOne = 256
    margin: ShareBelowOne = 0.5
    activation: Activation = "step"
    index: Literal["auto", "exact", "faiss", "product_keys"] = "auto"
    candidates: AtLeastOne = 256
    most: AtLeastOne = 8
    seed: Seed = 0
    name: str = field(default="knowledge_base", init=False)

    def __call__(self, lm: LanguageModel, facts: Sequence[Fact], entries: Sequence[Entry]) -> AttachedEdit:
        """The edit; see `corrigenda.knowledge.entries.Compiler`.

        Raises:
            ImportError: the index needs what is not installed.
        """
        of_layer = by_layer(entries)
        subjects = {fact.id: normalised(fact.subject) for fact in facts}
        texts = [lm.tokens(prompt) for prompt in unrelated_prompts()] + [list(text) for text in self.unrelated]
        views = coefficients_of(lm, texts[::2], sorted(of_layer))
        others = coefficients_of(lm, texts[1::2], sorted(of_layer))
        layers = [
            self._layer(lm, layer, mine, [subjects[entry.fact] for entry in mine], views[layer], others[layer])
            for layer, mine in of_layer.items()
        ]
        said: dict[str, dict[str, Any]] = {fact.id: {"thresholds": {}} for fact in facts}
        for attached in layers:
            for entry, threshold in zip(of_layer[attached.layer], attached.thresholds.tolist(), strict=True):
                said[entry.fact]["thresholds"][str(attached.layer)] = threshold
        settings = self._settings() | {"solver": dict(entries[0].settings) if entries else {}}
        report = tuple(said[fact.id] for fact in facts)
        return AttachedEdit.of(Origin(lm.name, lm.fingerprint, self.name, settings, tuple(facts), report), layers)

    def _layer(
        self,
        lm: LanguageModel,
        layer: int,
        entries: Sequence[Entry],
        subjects: Sequence[str],
        seen: Tensor,
        others: Tensor,
    ) -> AttachedLayer:
        """A layer's entries, from coefficients (n, d_ffn) of unrelated text for its view and for its thresholds."""
        memory = lm.memory(layer)
        mean, projection = self._view(seen)
        raw, residuals = residuals_of(entries, memory.values)
        keys = viewed(raw.float(), mean, projection)
        kind: Kind = self.index if self.index != "auto" else "exact" if len(keys) <= EXACT else LARGE
        index = index_of(kind, keys)
        others_score = nearest(keys, viewed(others, mean, projection), 1).scores[:, 0]
        highest = torch.maximum(others_score, nearest_other(keys, subjects, index, self.candidates)).clamp(min=0)
        thresholds = (highest + self.margin * (1 - highest)).clamp(max=1 - FINEST)
        values = residuals.float()
        if self.activation == "relu":
            values = values / (1 - thresholds)[:, None]
        return AttachedLayer(
            memory.layer,
            memory.path,
            mean,
            projection,
            keys,
            values,
            thresholds,
            self.activation,
            kind,
            self.candidates,
            self.most,
        )

    def _view(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The mean, (d_ffn,), and the projection, (d_ffn, d_k), from coefficients of text, (n, d_ffn)."""
        d_ffn = seen.shape[1]
        variances, mean = torch.var_mean(seen.double(), dim=0, correction=0)
        scale = (variances + SMALLEST * variances.mean()).clamp(min=torch.finfo(torch.float32).tiny).rsqrt()
        if self.width >= d_ffn:
            return mean.float(), scale.diag().float()
        draw = torch.Generator().manual_seed(self.seed)
        drawn = torch.randn(d_ffn, self.width, generator=draw, dtype=torch.float64) / self.width**0.5
        return mean.float(), (scale[:, None] * drawn).float()

    def _settings(self) -> dict[str, Any]:
        named = ("width", "margin", "activation", "index", "candidates", "most", "seed")
        return {name: getattr(self, name) for name in named} | {"unrelated": len(self.unrelated)}


@torch.no_grad()
def coefficients_of(lm: LanguageModel, texts: Sequence[Sequence[int]], layers: Sequence[int]) -> dict[int, Tensor]:
    """The coefficients at all positions of some texts, by layer (n, d_ffn), in float32 on the CPU."""
    found: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    for start in range(0, len(texts) if layers else 0, ROWS):
        batch = lm.batch(texts[start : start + ROWS])
        with ExitStack() as stack:
            seen = {layer: stack.enter_context(lm.memory(layer).capture()) for layer in layers}
            forward_to(lm, batch, max(layers))
        for layer in layers:
            found[layer].append(seen[layer].coefficients[batch.attention_mask.bool()].float().cpu())
    return {layer: torch.cat(parts) for layer, parts in found.items()}


def nearest_other(keys: Tensor, groups: Sequence[str], index: Index | None, candidates: int) -> Tensor:
    """The largest product of each key with one of another group, (n,); -1 where there is none (or none was found).

    Keys are of length 1, (n, d), `groups` says which each is of; the index proposes so many `candidates`, None: all.
    """
    number = {name: i for i, name in enumerate(dict.fromkeys(groups))}
    group = torch.tensor([number[name] for name in groups])
    best = torch.full((len(keys),), -1.0)
    left = torch.arange(len(keys))
    k = min(NEIGHBOURS, len(keys))
    while len(left):
        found = nearest(keys[left], keys, k, index, max(candidates, k))
        # Numbers of none (-1) have the score of minus infinity, and so count for nothing.
        another = torch.where(group[found.numbers] != group[left][:, None], found.scores, -torch.inf).max(1).values
        best[left] = torch.maximum(best[left], another)
        if k == len(keys):
            break
        left = left[another == -torch.inf]  # all of these are of the same group
        k = min(8 * k, len(keys))
    return best
