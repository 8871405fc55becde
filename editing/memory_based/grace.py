"""GRACE: a codebook of keys and learned values, with balls that are made, widened and split.

Hartvigsen, Sankaranarayanan, Palangi, Kim and Ghassemi 2023, "Aging with GRACE: Lifelong Model Editing with Discrete
Key-Value Adaptors".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel, Origin
from corrigenda.edits.codebook import CodebookEdit, Replace, nearest_keys, replaced
from corrigenda.edits.state import EditorState
from corrigenda.forward.differentiable import differentiable
from corrigenda.models.alone import one_thread
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, NotNegative, Positive, checked
from editing.editor import EditRefusedError, FactRefusedError, require_targets
from editing.registry import register
from editing.shared.entries import label_of, reports_after
from editing.shared.epochs import in_turn
from editing.shared.extending import Extendable, check_previous, state_of, without
from editing.shared.layers import OneLayer
from editing.shared.outliers import WHY
from editing.shared.together import note_disturbance
from editing.shared.training_rows import Rows, RowsForward, SideLayer, target_rows
from editing.spaces import Number, Space

ROUNDING = 1e-5
"""By this share of its length a key may be another where its prompt is run among others."""


def slack(key: Tensor, dtype: torch.dtype) -> float:
    """By how much a key may be another where its prompt is run among others, in a model of a precision."""
    return max(ROUNDING, 4 * torch.finfo(dtype).eps) * float(key.norm())


@dataclass(frozen=True, eq=False)
class GraceState(EditorState):
    """What GRACE goes on from, besides the codebook: each entry's answer, and each fact's entry (None: refused)."""

    labels: tuple[str, ...]
    members: tuple[int | None, ...]
    kind: ClassVar[str] = "grace"


@register(
    "grace",
    paper="Hartvigsen et al. 2023, Aging with GRACE: Lifelong Model Editing with Discrete Key-Value Adaptors",
    aim="beside the weights: nothing but the edited prompts changes",
    space=Space("one", (Number("relative_radius", 0.05, 2.0, log=True),)),
)
@dataclass(frozen=True)
@checked
class Grace(OneLayer, Extendable[CodebookEdit]):
    """General Retrieval Adaptors for Continual Editing.

    Facts are taken one after another. The key h of a fact are the coefficients that enter the layer's value matrix at
    the prompt's last token; i is the entry whose key is nearest, at the distance d. By the published rules (algorithm
    1), with `radius` as the radius of a new ball:

    - no entry, or d > epsilon_i + radius: a *new* entry (h, v, radius);
    - otherwise, i has the same answer: its ball is *expanded* to epsilon_i = max(epsilon_i, d) (and a little more, so
      that rounding does not shut h out, which lies on its border);
    - otherwise the balls conflict and i's is *split*: epsilon_i = d / 2 (less a little, so that nothing lies in both),
      and a new entry (h, v, d / 2).

    The value v starts from the FFN's output at the prompt's last token and is learned by gradient: -log P of the target
    and the end token after the bare prompt, v standing in for the FFN's output where `replace` says. The value of an
    expanded entry is learned on, for the new prompt, unless it gives the answer already.

    A fact that was edited before is learned on like an expansion. One that contradicts an earlier fact in the same
    words (`corrigenda.data.requests`) has its very key, d = 0: there is nothing to split, the entry's value and answer
    are replaced, the later fact wins, and its report says so.

    What departs from the authors, and how to take it back: the value stands in from the prompt's last token on
    (`replace`: theirs are ``last``, ``prompt``, which their published configuration names, and ``all``); it is done
    when its loss is low (``stop=0``: all steps are taken), and is the best one met, not the last; it starts from the
    FFN's output (theirs from random numbers, by configuration); the end token is learned, too; and where `radius` is
    not given, it is relative to the model's own distances.

    Attributes:
        layer: the layer; None for 0.84 of the depth.
        radius: of a new ball; None for `relative_radius` times the median distance between the keys of unrelated texts.
        relative_radius: see `radius`.
        steps: gradient steps for a value, at most.
        lr: Adam's learning rate, in units of the root mean square of the FFN output that v starts from.
        stop: the loss per token at which a value is done.
        text: the unrelated texts; each key is taken at the end of a sequence.
        replace: at which tokens the value takes the place of the FFN's output (`corrigenda.edits.codebook.Replace`):
            "onwards" (the prompt's last and all after it), "last" (the prompt's last alone), "prompt" (those before
            its last) or "all".
        widen: what the radii are multiplied by when a prompt is routed, after the rules above made them; 1 is the
            published method. The rules halve the radii of balls that conflict, so that a larger `radius` soon changes
            nothing; this reaches further (`editor=grace_wide`).
        name: what results call it.
    """

    depth: ClassVar[float] = 0.84  # where WISE's paper finds edits beside a layer to work best

    layer: int | None = None
    radius: Positive | None = None
    relative_radius: Positive = 0.25
    steps: AtLeastOne = 100
    lr: Positive = 0.5
    stop: NotNegative = 0.05
    text: Text = field(default_factory=lambda: Text(tokens=64 * 24, length=24))
    replace: Replace = "onwards"
    widen: Positive = 1.0
    name: str = "grace"

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """Samples the unrelated texts, which are kept on disk."""
        if self.radius is None:
            self.text.sequences(lm)

    @note_disturbance
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> CodebookEdit:
        """The codebook of an earlier edit with further facts; the earlier edit itself stays as it is.

        Raises:
            EditRefusedError: a fact asks for an erasure; `previous` is another editor's, or of another layer or model,
                or without its editor state; or no fact could be edited.
        """
        require_targets("GRACE", facts)
        lm.architecture.require_causal("GRACE")
        layer = self.resolved_layer(lm)
        own = check_previous("GRACE", lm, [layer], previous, CodebookEdit)
        state = GraceState((), ()) if own is None else state_of("GRACE", own, GraceState)
        if own is not None and own.replace != self.replace:
            raise EditRefusedError(
                f"GRACE: the edit to go on from was made with replace={own.replace!r}, this editor has "
                f"replace={self.replace!r}"
            )
        with without(lm, previous):
            side = SideLayer(lm, layer)
            radius = self.relative_radius * usual_distance(side, self.text) if self.radius is None else self.radius
            book = _Book(side, own, state.labels, radius)
            rows, unusable = self._rows(side, facts)
            report: list[dict[str, Any]] = []
            members: list[int | None] = []
            for number, fact in enumerate(in_turn(facts, "GRACE")):
                if number in rows:
                    figures, member = self._add(side, book, rows[number], fact)
                else:
                    figures, member = {"refused": unusable[number]}, None
                report.append(figures)
                members.append(member)
                if "refused" in figures:
                    warnings.warn(f"GRACE: fact {fact.id!r} is refused: {figures['refused']}", stacklevel=3)
        if all("refused" in figures for figures in report):
            raise EditRefusedError(
                "; ".join(f"fact {f.id!r}: {r['refused']}" for f, r in zip(facts, report, strict=True))
            )
        origin = Origin.of(lm, self, *reports_after(previous, facts, report))
        return book.edit(origin, (*state.members, *members), self.replace, self.widen)

    def _rows(self, side: SideLayer, facts: Sequence[Fact]) -> tuple[dict[int, Rows], dict[int, str]]:
        """By a fact's number its prompt, target and end token; of those that cannot be run, why they are refused."""
        asked, why = dict[int, tuple[list[int], int]](), dict[int, str]()
        for number, fact in enumerate(facts):
            try:
                asked[number] = target_rows(side.lm, fact)
            except FactRefusedError as refusal:
                why[number] = refusal.why
        rows = side.run(list(asked.values())) if asked else Rows()
        return {number: rows.pick([place]) for place, number in enumerate(asked)}, why

    def _add(self, side: SideLayer, book: _Book, row: Rows, fact: Fact) -> tuple[dict[str, Any], int | None]:
        """Adds one fact; returns its report and its entry. The codebook is as it was where the fact is refused."""
        if row.outlier(0):
            return {"refused": WHY}, None
        forward = RowsForward(side, row)
        key = row.coefficients[0][row.prompts[0] - 1].to(side.memory.weight.device)
        if not bool(key.isfinite().all()):
            return {"refused": "its key is not finite; the codebook is left as it was"}, None
        label = label_of(fact)
        figures: dict[str, Any] = {}
        entry, distance = book.nearest(key)
        start = side.memory.read(key[None])[0].float()
        if entry is None or distance > float(book.radii[entry]) + book.radius:
            figures["rule"] = "new"
            radius, others = book.radius, None
        elif book.labels[entry] == label:
            figures["rule"] = "expanded"
            radius, others = max(float(book.radii[entry]), distance + slack(key, side.lm.dtype)), None
            start = book.values[entry]
        elif distance <= slack(key, side.lm.dtype):
            figures["rule"] = "replaced"
            radius, others = float(book.radii[entry]), None
            start = book.values[entry]
        else:
            figures["rule"] = "split"
            radius, others = distance / 2, distance / 2 * (1 - 1e-5)
        value, losses = self._learn(forward, side, start)
        loss = min(losses) if math.isfinite(losses[-1]) else math.nan
        figures |= {"steps": len(losses) - 1}
        if not math.isfinite(loss):
            figures["refused"] = "the loss is not finite; the codebook is left as it was"
            return figures, None
        figures |= {
            "loss": loss,
            "step_losses": losses,
            "radius": radius,
            "distance": None if entry is None else distance,
        }
        if figures["rule"] in ("expanded", "replaced"):
            assert entry is not None
            book.change(entry, value, radius, label)
            return figures, entry
        if others is not None:
            assert entry is not None
            book.radii[entry] = others
        return figures, book.append(key, value, radius, label)

    def _learn(self, forward: RowsForward, side: SideLayer, start: Tensor) -> tuple[Tensor, list[float]]:
        return learn_value(forward, side, start, self.replace, self.steps, self.lr, self.stop)


@differentiable()
def learn_value(
    forward: RowsForward, side: SideLayer, start: Tensor, replace: Replace, steps: int, lr: float, stop: float
) -> tuple[Tensor, list[float]]:
    """The best value, and the losses before each step and at the end; the last is not finite if that stopped it.

    It begins at `start`, (d_model,), and takes the place of the FFN's output at the tokens `replace`. At most `steps`
    of Adam are made, with a rate in units of the root mean square of `start`, until the loss per token is `stop`.
    """
    old = side.memory.read(forward.coefficients).float()
    value = start.clone().requires_grad_()
    at = replaced(replace, forward.prompt, forward.tail)[..., None]
    optimiser = torch.optim.Adam([value], lr=lr * max(float(start.square().mean().sqrt()), 1e-6))
    best, losses = start.clone(), list[float]()
    for step in range(steps + 1):
        with torch.set_grad_enabled(step < steps):
            loss = forward.nll(torch.where(at, value - old, 0))[0]
        losses.append(float(loss.detach()))
        if losses[-1] == min(losses):
            best = value.detach().clone()
        if not stop <= losses[-1] < math.inf or step == steps:
            return best, losses
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    raise AssertionError("unreachable")


def usual_distance(side: SideLayer, text: Text) -> float:
    """The median distance between the keys of unrelated texts at a layer, each taken at the end of a sequence."""
    rows = side.run([(ids, len(ids)) for ids in text.sequences(side.lm)])
    return float(torch.pdist(torch.stack([m[-1] for m in rows.coefficients])).median())


class _Book:
    """A codebook while facts are added to it."""

    def __init__(self, side: SideLayer, previous: CodebookEdit | None, labels: Sequence[str], radius: float) -> None:
        memory = side.memory
        device = memory.weight.device
        self.memory, self.radius = memory, radius
        self.labels = list(labels)
        if previous is None:
            self.keys = torch.zeros(0, memory.d_ffn, device=device)
            self.values = torch.zeros(0, memory.d_model, device=device)
            self.radii = torch.zeros(0, device=device)
        else:
            self.keys, self.values, self.radii = (
                part.clone().to(device) for part in (previous.keys, previous.values, previous.radii)
            )

    def nearest(self, key: Tensor) -> tuple[int | None, float]:
        if not self.labels:
            return None, math.inf
        entry, distance = nearest_keys(key[None], self.keys)
        return int(entry), float(distance)

    def append(self, key: Tensor, value: Tensor, radius: float, label: str) -> int:
        self.keys = torch.cat([self.keys, key[None]])
        self.values = torch.cat([self.values, value[None]])
        self.radii = torch.cat([self.radii, torch.tensor([radius], device=self.radii.device)])
        self.labels.append(label)
        return len(self.labels) - 1

    def change(self, entry: int, value: Tensor, radius: float, label: str) -> None:
        self.values[entry], self.radii[entry], self.labels[entry] = value, radius, label

    def edit(self, origin: Origin, members: tuple[int | None, ...], replace: Replace, widen: float) -> CodebookEdit:
        state = GraceState(tuple(self.labels), members)
        return CodebookEdit.of(self.memory, origin, self.keys, self.values, self.radii, state, replace, widen)
