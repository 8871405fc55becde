"""`CounterfactualNetwork`: a scope classifier and a low-rank change; `CounterfactualTask`: what both are trained on.

Mitchell et al. 2022b, "Memory-Based Model Editing at Scale". With z = an encoder's vector of a prompt, z_j that of a
statement, and S the classifier (a matrix):

    s = exp(-|z S - z_j S|^2)                                      whether the prompt is in the statement's scope
    log p = log((1 - s) p_base + s p_cf)                           p_cf: behind the statement, with V_l + A_l B_l
    L_edit = -log p(new object | a paraphrase)                     L_loc = KL(p_base || p) at prompts that shall stay
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from corrigenda import Fact, LanguageModel
from corrigenda.errors import ContextLengthError
from corrigenda.prompts import encode, put_before
from editing.editor import FactRefusedError
from editing.learned.hypernetwork import LayersNetwork
from editing.learned.material import Text, asked_prompts, kept_prompts, kept_text, require_some
from editing.learned.side_rows import LayerUpdate, TextRow, UpperLayers, mean_by_row
from editing.shared.training_rows import target_rows

CLOSEST = 1e-6
"""The least squared distance in training: where a prompt is the statement's own, 1 - s would be 0."""


class CounterfactualNetwork(LayersNetwork):
    """A scope classifier on an encoder's vectors, and a low-rank change of each layer.

    Args:
        layers: counted from the bottom, ascending.
        encoder: the encoder's name.
        gate: what tells the gate of its states from others; "" for an encoder without one.
        width: of its vectors.
        d_ffn: of the layers.
        d_model: of the layers.
        rank: of the change.
        template: of the statements that it is trained to read; "" where an older file does not say.

    Attributes:
        map: M, (width, width), of S = exp(log_scale) (I + M).
        log_scale: a number.
        left: A, (layer, d_ffn, rank), random at first.
        right: B, (layer, rank, d_model), zero at first.
    """

    def __init__(
        self,
        layers: Sequence[int],
        encoder: str,
        gate: str,
        width: int,
        d_ffn: int,
        d_model: int,
        rank: int,
        template: str = "",
    ) -> None:
        shape = {"encoder": encoder, "gate": gate, "width": width, "d_ffn": d_ffn, "d_model": d_model, "rank": rank}
        super().__init__(layers, **shape, template=template)
        self.map = nn.Parameter(torch.zeros(width, width))
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.left = nn.Parameter(torch.empty(len(layers), d_ffn, rank).uniform_(-1, 1) / d_ffn**0.5)
        self.right = nn.Parameter(torch.zeros(len(layers), rank, d_model))

    @property
    def scope(self) -> Tensor:
        """S, (width, width)."""
        return self.log_scale.exp() * (torch.eye(len(self.map), device=self.map.device) + self.map)

    def updates(self) -> dict[int, LayerUpdate]:
        """The change of each layer, as that of edit 0."""
        edit = torch.zeros(self.left.shape[2], dtype=torch.long, device=self.left.device)
        parts = zip(self.layers, self.left, self.right, strict=True)
        return {layer: LayerUpdate(left, right, edit) for layer, left, right in parts}


class JudgedRow(NamedTuple):
    """A prompt with its answer, as it is and behind the statement of its fact, and the prompt's vector, (width,)."""

    bare: TextRow
    stated: TextRow
    query: Tensor


class _Judged(NamedTuple):
    prompt: str
    bare: Text
    stated: Text


@dataclass(frozen=True, eq=False)
class CounterfactualTask:
    """Statements, and prompts that are in their scope or not.

    Attributes:
        key: what else than facts and settings tells one training from another.
        facts: those that can be trained on.
        asked: of each fact the rows that shall have its new object: paraphrases, or where there are none its prompt.
        kept: of each fact the rows that shall stay as they are: prompts about other subjects, and unrelated ones.
        per_step: so many facts are in a step.
        keys: the encoder's vectors of the facts' own prompts, (fact, width).
        upper: runs rows.
        begin: makes the network with which the training begins.
    """

    key: Sequence[Any]
    facts: tuple[Fact, ...]
    asked: tuple[tuple[JudgedRow, ...], ...]
    kept: tuple[tuple[JudgedRow, ...], ...]
    per_step: int
    keys: Tensor
    upper: UpperLayers
    begin: Callable[[], CounterfactualNetwork]

    @classmethod
    def of(
        cls,
        lm: LanguageModel,
        editor: str,
        facts: Sequence[Fact],
        stated: Callable[[Fact], str],
        embed: Callable[[Sequence[str]], Tensor],
        begin: Callable[[], CounterfactualNetwork],
        *,
        key: Sequence[Any],
        per_step: int,
        end_token: bool,
        most_kept: int,
        seed: int,
    ) -> CounterfactualTask:
        """Runs the facts' texts on an unedited model.

        A fact that is too long, or that has no prompt that shall stay, is left out; of the others at most `most_kept`
        such prompts each are drawn. `stated` gives the statement of a fact, `embed` the encoder's vectors of prompts,
        `begin` the network with which the training begins. Raises ValueError: no fact is left.
        """
        draw = random.Random(seed)
        good: list[Fact] = []
        sides: tuple[list[list[_Judged]], list[list[_Judged]]] = [], []
        for fact in facts:
            texts = _texts(lm, fact, stated(fact), end_token, most_kept, draw)
            if texts is not None:
                good.append(fact)
                for side, own in zip(sides, texts, strict=True):
                    side.append(own)
        require_some(editor, good, facts)
        every = [one for side in sides for own in side for one in own]
        layers = begin().layers
        upper = UpperLayers(lm, layers[0])
        read = iter(upper.read([text for one in every for text in (one.bare, one.stated)]))
        queries = iter(embed([one.prompt for one in every]))
        asked, kept = (
            tuple(tuple(JudgedRow(next(read), next(read), next(queries)) for _ in own) for own in side)
            for side in sides
        )
        keys = embed([fact.statement for fact in good])
        return cls(key, tuple(good), asked, kept, per_step, keys, upper, begin)

    def network(self, train: Sequence[int]) -> CounterfactualNetwork:
        """The network with which the training begins, whatever the facts."""
        return self.begin()

    def judged(
        self, network: CounterfactualNetwork, facts: Sequence[int], asked: Sequence[int], kept: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """L_edit and L_loc of facts, with the number of each one's row that is asked and of the one that shall stay."""
        rows, stay = (
            [side[fact][number] for fact, number in zip(facts, numbers, strict=True)]
            for side, numbers in ((self.asked, asked), (self.kept, kept))
        )
        keys = self.keys[list(facts)]
        _, mixed, owner = self._mixed(network, keys, rows, behind=False)
        targets = torch.cat([row.bare.ids[row.bare.prompt :] for row in rows]).to(mixed.device)
        edit = mean_by_row(-mixed.gather(1, targets[:, None])[:, 0], owner)
        base, mixed, owner = self._mixed(network, keys, stay, behind=True)
        return edit, mean_by_row((base.exp() * (base - mixed)).sum(-1), owner)

    def _mixed(
        self, network: CounterfactualNetwork, keys: Tensor, rows: Sequence[JudgedRow], behind: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log p_base and log p after each row's prompt and answer's tokens, (n, vocabulary), and the row of each."""
        edit_of = torch.zeros(len(rows), dtype=torch.long, device=network.left.device)
        with torch.no_grad():
            base, owner = self.upper.logits([row.bare for row in rows], {}, edit_of, behind)
            base = base.log_softmax(-1)
        stated, _ = self.upper.logits([row.stated for row in rows], network.updates(), edit_of, behind)
        apart = (keys - torch.stack([row.query for row in rows])).to(network.left.device) @ network.scope
        log_s = -apart.square().sum(1).clamp(min=CLOSEST).to(owner.device)[owner][:, None]
        log_rest = (-torch.expm1(log_s)).log()
        return base, torch.logaddexp(log_rest + base, log_s + stated.log_softmax(-1)), owner


def _texts(
    lm: LanguageModel, fact: Fact, statement: str, end_token: bool, most_kept: int, draw: random.Random
) -> tuple[list[_Judged], list[_Judged]] | None:
    """The texts that shall have the new object, and those that shall stay; None where a fact cannot be trained on."""
    try:
        asked = [
            _behind(lm, statement, prompt, target_rows(lm, fact, prompt, end_token)) for prompt in asked_prompts(fact)
        ]
    except (FactRefusedError, ContextLengthError):
        return None
    kept = []
    for prompt, answer in kept_prompts(fact, most_kept, draw):
        text = kept_text(lm, prompt, answer)
        try:
            kept += [] if text is None else [_behind(lm, statement, prompt, text)]
        except ContextLengthError:
            continue
    return (asked, kept) if kept else None


def _behind(lm: LanguageModel, statement: str, prompt: str, bare: Text) -> _Judged:
    """A prompt with its answer, and the same behind a statement.

    Raises:
        ContextLengthError: the model does not read so much.
    """
    ids, length = bare
    before = encode(lm.tokenizer, put_before(lm.tokenizer, statement, prompt))
    whole = [*before, *ids[length:]]
    lm.require_room(len(whole), "a prompt behind a statement")
    return _Judged(prompt, bare, (whole, len(before)))
