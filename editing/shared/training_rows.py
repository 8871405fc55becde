"""Training rows: texts that something beside a layer is trained on; run once up to it, then from there at each step."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.edits.side_memory import routing_score
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import Recording, record
from corrigenda.models.routes import Routes
from corrigenda.prompts import encode, encode_target
from editing.editor import EditRefusedError, FactRefusedError, refusing_long, require_room
from editing.shared.outliers import WHY, outliers

RECORD_TOKENS = 2048
"""How many tokens, padding included, are run at once when rows are recorded."""


def end_token(lm: LanguageModel) -> int:
    """The token that ends an answer in a training target. Raises EditRefusedError: the model has none."""
    if lm.tokenizer.eos_token_id is not None:
        return int(lm.tokenizer.eos_token_id)
    if not lm.end_ids:
        raise EditRefusedError(f"{lm.name} has no end token; an answer learned without one would not end")
    return min(lm.end_ids)


def target_rows(lm: LanguageModel, fact: Fact, prompt: str | None = None, end: bool = True) -> tuple[list[int], int]:
    """The tokens of a prompt (the fact's own if none), the target and the end token; and how many are the prompt's.

    Without the end token unless `end`.

    Raises:
        FactRefusedError: they are longer than an edit is computed on; or the prompt has fewer than two tokens: its
            first says nothing (see `SideMemoryEdit`), so that nothing would tell this prompt from others.
    """
    assert fact.target_new is not None
    prompt = lm.reads(fact.statement if prompt is None else prompt)
    ids = encode(lm.tokenizer, prompt)
    if len(ids) < 2:
        raise FactRefusedError(fact, f"the prompt {prompt!r} has one token only; nothing to route by")
    ended = [end_token(lm)] if end else []
    with refusing_long(fact):
        target = encode_target(lm.tokenizer, prompt, fact.target_new, fact.joint)
    require_room(lm, fact, len(ids) + len(target) + len(ended))
    return [*ids, *target, *ended], len(ids)


def thinned(fact: Fact, share: float, draw: random.Random) -> str:
    """The fact's statement with some of its words left out: each with the given probability, the subject's never.

    A side of the prompt that touches the subject without a space between them (quotation marks, "'s") stays whole. Rows
    like this make what is learned hang on the subject and on few of the other words, as a paraphrase needs it.
    """
    left, right = fact.prompt.split("{}")
    before = "".join(word for word in re.findall(r"\s*\S+\s*", left) if draw.random() >= share)
    after = "".join(word for word in re.findall(r"\s*\S+", right) if draw.random() >= share)
    if left and not left[-1].isspace():
        before = left
    if right and not right[0].isspace():
        after = right
    elif ends := right[len(right.rstrip()) :]:  # the line break of a template belongs to the answer's place
        after += ends
    return before + fact.subject + after


@dataclass(frozen=True)
class Rows:
    """Texts with what the model did with them below a side memory.

    Attributes:
        ids: the tokens of each row: a prompt, and the target's tokens after it.
        prompts: how many of them are the prompt.
        coefficients: m at the side memory's layer, for each row (its tokens, d_ffn).
        states: what enters the first layer that a change of the side memory reaches, (its tokens, d_model).
        decided: for each row the routes of applied edits that decide by what is below that layer, and does not run
            again; none where it was read from a file.
    """

    ids: tuple[Tensor, ...] = ()
    prompts: tuple[int, ...] = ()
    coefficients: tuple[Tensor, ...] = ()
    states: tuple[Tensor, ...] = ()
    decided: tuple[Mapping[Any, Tensor], ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __add__(self, other: Rows) -> Rows:
        return Rows(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    def pick(self, rows: Sequence[int]) -> Rows:
        """Some of the rows."""
        return Rows(*(tuple(getattr(self, part.name)[row] for row in rows) for part in fields(self)))

    def outlier(self, row: int) -> bool:
        """Whether the state at the last token of a row's prompt, which its answer is learned at, is an outlier."""
        return outliers([self.states[row].float().norm(dim=-1)[None]], [self.prompts[row] - 1])[0]

    def require_ordinary(self, facts: Sequence[Fact]) -> None:
        """Refuses the first of some facts, of which each has a row, whose row is an outlier (FactRefusedError)."""
        for row, fact in enumerate(facts):
            if self.outlier(row):
                raise FactRefusedError(fact, WHY)

    def require_finite(self, facts: Sequence[Fact]) -> None:
        """Refuses the first of some facts, of which each has a row, whose row has no numbers (FactRefusedError)."""
        for coefficients, fact in zip(self.coefficients, facts, strict=True):
            if not bool(coefficients.isfinite().all()):
                raise FactRefusedError(fact, "its coefficients are not finite")

    def tensors(self) -> dict[str, Tensor]:
        """The rows one after another, for `Edit.save`; `from_tensors` reads them back."""
        if not self.ids:
            return {}
        return {
            "ids": torch.cat(self.ids),
            "lengths": torch.tensor([len(ids) for ids in self.ids]),
            "prompts": torch.tensor(self.prompts),
            "coefficients": torch.cat(self.coefficients),
            "states": torch.cat(self.states),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Rows:
        """The rows that `tensors` made."""
        if not tensors:
            return cls()
        lengths = tensors["lengths"].tolist()
        ids, coefficients, states = (tensors[name].split(lengths) for name in ("ids", "coefficients", "states"))
        parts = (tuple(ids), tuple(tensors["prompts"].tolist()), tuple(coefficients), tuple(states))
        return cls(*parts, decided=({},) * len(ids))


class SideLayer:
    """The layer of a model that a side memory stands beside, and the layers above it.

    The model must not change meanwhile. With `anew` the layer itself runs anew at each step, since what is trained lies
    inside it and above.
    """

    def __init__(self, lm: LanguageModel, layer: int, anew: bool = False) -> None:
        self.lm = lm
        self.memory = lm.memory(layer)
        self.layer = self.memory.layer
        plain = lm.architecture.adds_plainly and self.layer + 1 < lm.n_layers and not anew
        # Where the FFN's output simply joins the residual stream, its own layer need not run again.
        self.first = self.layer + 1 if plain else self.layer
        self.tuples = record(lm, lm.batch([lm.least]), []).tuples

    def run(self, sequences: Sequence[tuple[Sequence[int], int]]) -> Rows:
        """Runs texts, each with the length of its prompt, once; only here do the layers below the side memory run."""
        found: dict[int, tuple[Tensor, Tensor, dict[Any, Tensor]]] = {}
        for group in groups_of([len(ids) for ids, _ in sequences]):
            batch = self.lm.batch([sequences[i][0] for i in group], [sequences[i][1] for i in group])
            with self.memory.capture() as seen:
                recording = record(self.lm, batch, [self.first])
            decided = recording.routes.below(self.first).decided
            for place, i in enumerate(group):
                n = len(sequences[i][0])
                found[i] = (
                    seen.coefficients[place, :n].float().cpu().clone(),
                    recording.states[self.first][place, :n].cpu().clone(),
                    {edit: way[place] for edit, way in decided.items()},
                )
        return Rows(
            tuple(torch.tensor(list(ids)) for ids, _ in sequences),
            tuple(prompt for _, prompt in sequences),
            tuple(found[i][0] for i in range(len(sequences))),
            tuple(found[i][1] for i in range(len(sequences))),
            tuple(found[i][2] for i in range(len(sequences))),
        )


def groups_of(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of these lengths in groups that are run at once: the numbers of each group's rows, the shortest first."""
    groups: list[list[int]] = [[]]
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if groups[-1] and (len(groups[-1]) + 1) * lengths[i] > RECORD_TOKENS:
            groups.append([])
        groups[-1].append(i)
    return groups


class RowsForward:
    """Forwards of some rows from a layer's FFN output on, with something added to that output.

    Args:
        side: the layer.
        rows: the rows.

    Attributes:
        coefficients: m, (row, position, d_ffn), padded on the right.
        counted: (row, position), the tokens that the routing score counts: those of the prompt but the first.
        changed: (row, position), the tokens at which a side memory answers: all but the first.
        tail: (row, position), the prompt's last token and all after it.
        prompt: (row, position), the tokens of the prompt.
        targets: (n,), the target tokens of all rows.
        owner: (n,), the row of each.
    """

    def __init__(self, side: SideLayer, rows: Rows) -> None:
        lm, device = side.lm, side.memory.weight.device
        self._side = side
        batch = lm.batch([ids.tolist() for ids in rows.ids], rows.prompts)
        place = torch.arange(1, batch.input_ids.shape[1] + 1, device=device)
        lengths, prompts = batch.lengths.to(device)[:, None], torch.tensor(rows.prompts, device=device)[:, None]
        self.coefficients = _padded(rows.coefficients, device)
        self.changed = (place > 1) & (place <= lengths)
        self.counted = (place > 1) & (place <= prompts)
        self.tail = (place >= prompts) & (place <= lengths)
        self.prompt = place <= prompts
        self._predicts = (place >= prompts) & (place < lengths)
        self.owner = self._predicts.nonzero()[:, 0]
        known = set.intersection(*(set(one) for one in rows.decided))
        decided = {edit: torch.stack([one[edit] for one in rows.decided]) for edit in known}
        self.targets = torch.cat([ids[prompt:] for ids, prompt in zip(rows.ids, rows.prompts, strict=True)]).to(device)
        recording = Recording(
            batch=batch,
            states={side.first: _padded(rows.states, device)},
            cache=None,  # the rows run from their first position on
            logits=None,
            tuples=side.tuples,
            routes=Routes(batch.prompts, decided),
        )
        self._partial = PartialForward(lm, recording, side.first, torch.zeros_like(batch.lengths))

    def scores(self, delta: Tensor) -> Tensor:
        """D of each row's prompt for a side memory, (row,); see `SideMemoryEdit`."""
        return routing_score(self.coefficients, delta, self.counted)

    def side_answer(self, delta: Tensor) -> Tensor:
        """What a side memory adds to the FFN output where it answers in every row: m (V' - V), (row, position, d)."""
        # Multiplied at the tokens that change only.
        answer = torch.zeros(*self.changed.shape, delta.shape[1], dtype=delta.dtype, device=delta.device)
        return answer.index_put((self.changed,), self.coefficients[self.changed] @ delta)

    def logits(self, added: Tensor | None) -> Tensor:
        """The logits from which the targets are predicted, (n, vocabulary), with (row, position, d_model) added."""
        if added is None:
            return self._partial.logits(self._predicts)
        states = self._partial.states
        if self._side.first > self._side.layer:
            assert states is not None
            return self._partial.logits(self._predicts, states + added.to(states.dtype))
        with self._side.memory.add(added):
            return self._partial.logits(self._predicts)

    def nll(self, added: Tensor | None = None) -> Tensor:
        """The mean of -log P of each row's target tokens, (row,)."""
        log_probs = self.logits(added).float().log_softmax(-1)
        chosen = log_probs.gather(1, self.targets[:, None])[:, 0]
        sums = torch.zeros(len(self.tail), device=chosen.device).index_add(0, self.owner, -chosen)
        return sums / self._predicts.sum(1)


def _padded(rows: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True).to(device)
