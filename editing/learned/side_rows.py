"""Texts that run from a layer on, without or with updates of some layers' values that gradients go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn

from corrigenda import LanguageModel
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import Recording, record
from corrigenda.models.routes import Routes
from corrigenda.system.progress import track
from editing.shared.training_rows import groups_of


class LayerUpdate(NamedTuple):
    """A layer's update of several edits: that of edit e is the product of the columns and rows where `edit` is e.

    `left` is (d_ffn, n), `right` (n, d_model), `edit` (n,).
    """

    left: Tensor
    right: Tensor
    edit: Tensor


class TextRow(NamedTuple):
    """A text: its tokens, how many are the prompt, and what enters the lowest changed layer, (token, d_model)."""

    ids: Tensor
    prompt: int
    state: Tensor


class UpperLayers:
    """The layers of a model from the lowest one that is changed, `first`; the model must not change meanwhile."""

    def __init__(self, lm: LanguageModel, first: int) -> None:
        self._lm, self._first = lm, first
        self._tuples = record(lm, lm.batch([lm.least]), [], until=first).tuples

    def read(self, texts: Sequence[tuple[Sequence[int], int]]) -> list[TextRow]:
        """Runs texts, each with the length of its prompt, once: only here the layers below run."""
        found: dict[int, TextRow] = {}
        groups = groups_of([len(ids) for ids, _ in texts])
        for group in track(groups, f"Reading {len(texts)} texts"):
            batch = self._lm.batch([texts[number][0] for number in group], [texts[number][1] for number in group])
            states = record(self._lm, batch, [self._first], until=self._first).states[self._first].cpu()
            for state, number in zip(states, group, strict=True):
                ids, prompt = texts[number]
                found[number] = TextRow(torch.tensor(list(ids)), prompt, state[: len(ids)].clone())
        return [found[number] for number in range(len(texts))]

    def logits(
        self, rows: Sequence[TextRow], updates: Mapping[int, LayerUpdate], edit_of: Tensor, behind: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The logits, (n, vocabulary), after each row's prompt and its answer's tokens, and the row of each, (n,).

        By layer updates, if any; `edit_of`, (row,), says by which of the edits each is run. With `behind` what follows
        the whole answer counts, too.
        """
        lm = self._lm
        batch = lm.batch([row.ids.tolist() for row in rows], [row.prompt for row in rows])
        device = batch.input_ids.device
        place = torch.arange(1, batch.input_ids.shape[1] + 1, device=device)
        ends = batch.lengths.to(device)[:, None] + int(behind)
        counted = (place >= torch.tensor([row.prompt for row in rows], device=device)[:, None]) & (place < ends)
        states = nn.utils.rnn.pad_sequence([row.state for row in rows], batch_first=True).to(device)
        routes = Routes(batch.prompts)
        recording = Recording(batch, {self._first: states}, None, None, self._tuples, routes)
        partial = PartialForward(lm, recording, self._first, torch.zeros_like(batch.lengths))
        with ExitStack() as stack:
            for layer, update in updates.items():
                stack.enter_context(lm.memory(layer).answer(_with(update, edit_of)))
            return partial.logits(counted).float(), counted.nonzero()[:, 0]


def _with(update: LayerUpdate, edit_of: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """What an FFN's output becomes with the update of each row's edit."""

    def answered(coefficients: Tensor, output: Tensor) -> Tensor:
        left, right = (part.to(coefficients.device, torch.float32) for part in (update.left, update.right))
        own = (edit_of[:, None] == update.edit[None].to(edit_of.device)).to(left)
        return output + ((coefficients.float() @ left * own[:, None]) @ right).to(output)

    return answered


def mean_by_row(values: Tensor, owner: Tensor) -> Tensor:
    """The mean over rows of the mean of each row's values, (n,), of which `owner` names the rows."""
    counts = owner.bincount().to(values)
    return (values / counts[owner]).sum() / len(counts)
