"""T-Patcher: further neurons in the last feed-forward network, one for each mistake.

Huang, Shen, Zhang, Zhou, Rong and Xiong 2023, "Transformer-Patcher: One Mistake Worth One Neuron" (section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel, Origin
from corrigenda.edits.added_neurons import AddedNeuronsEdit, answer
from corrigenda.edits.state import StoredState
from corrigenda.forward.differentiable import differentiable
from corrigenda.forward.recording import forward_to
from corrigenda.models.alone import one_thread
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, NotNegative, Positive, checked
from editing.editor import FactRefusedError, require_targets
from editing.registry import register
from editing.shared.entries import EntriesState, reports_after
from editing.shared.epochs import in_turn
from editing.shared.extending import Extendable, check_previous, state_of, without
from editing.shared.layers import OneLayer
from editing.shared.together import together
from editing.shared.training_rows import Rows, RowsForward, SideLayer, groups_of, target_rows
from editing.spaces import Number, Space

Neurons = tuple[Tensor, Tensor, Tensor, Tensor]
"""Keys, ups, biases and values (`AddedNeuronsEdit`)."""


@dataclass(frozen=True, eq=False)
class PatcherState(EntriesState):
    """What T-Patcher goes on from, besides the neurons: how many each fact has, in the order of the facts."""

    counts: tuple[int, ...] = ()
    kind: ClassVar[str] = "t_patcher"

    def stored(self) -> StoredState:
        """Without tensors."""
        plain = super().stored()
        return StoredState(self.kind, {}, {**plain.values, "counts": list(self.counts)})

    @classmethod
    def restore(cls, stored: StoredState) -> PatcherState:
        """The state that `stored` gave."""
        return cls(super().restore(stored).facts, tuple(stored.values["counts"]))


@register(
    "t_patcher",
    paper="Huang et al. 2023, Transformer-Patcher: One Mistake Worth One Neuron",
    aim="a neuron or a few for each fact beside the last layer's own, which other text is not to activate",
    space=Space("one", (Number("memory_weight", 1.0, 100.0, log=True), Number("margin", 0.0, 6.0))),
)
@dataclass(frozen=True)
@checked
class TPatcher(OneLayer, Extendable[AddedNeuronsEdit]):
    """Transformer-Patcher.

    Facts are taken one after another. A mistake is a token of the new object that the model does not predict under
    teacher forcing; each gets a neuron (`AddedNeuronsEdit`), at most `most` of a fact; where there is none, the first
    token does. With the query q that enters the FFN where the token is predicted, a neuron begins as k = q / |q|^2,
    b = 0, so that a = q k^T + b is 1, and a value of 0. Keys, biases and values are learned together, by Adam (a value
    only while the loss is not below `stop`), on

        L_edit + activation_weight L_act + memory_weight L_mem
        L_edit  -log P(new object | prompt), a token
        L_act   mean over neurons of exp(-a)
        L_mem   S(M k^T + b + margin) + S((M - q) k^T + margin),   S(x) = mean of the `hardest` largest exp(x)

    M are remembered queries: those of other text, and those at which earlier facts' tokens are predicted. Earlier
    neurons stay as they are. A later fact about the same thing takes the place of the earlier one's neurons.

    Nothing is exactly zero where f is not (GELU, SiLU): other text moves a little.

    What departs from the authors: of a gated FFN, which they have not, k stands in the gate, and u = q / |q|^2 is not
    learned; where the layer's network has no biases, the neuron has none; values begin at zero (theirs at random, ten
    times amplified) and rest while the fact is said, since they would grow without an end while keys are still learned,
    and SiLU lets a part of them through at every token; a fact is done when its loss is low and every remembered query
    has a <= -`margin` (theirs by a validation set); rates are relative, and gradients are not cut (theirs at a norm of
    5); the end token is not learned.

    Attributes:
        layer: the layer; None for the last.
        most: neurons of one fact, at most.
        steps: gradient steps for a fact, at most.
        key_lr: Adam's learning rate of keys and biases, in units of the root mean square of k at the beginning. Theirs
            is 0.01, which is 2.4 such units in SmolLM2-135M.
        lr: Adam's learning rate of values, in units of the root mean square of the FFN's output there.
        stop: the loss per token at which a fact may be done.
        activation_weight: see above.
        memory_weight: see above.
        margin: see above; theirs are called beta and gamma, -3 both.
        hardest: see above.
        text: the other text; all its tokens' queries are remembered.
        name: what results call it.
    """

    depth: ClassVar[float] = 1.0

    layer: int | None = None
    most: AtLeastOne = 5
    steps: AtLeastOne = 200
    key_lr: Positive = 2.0
    lr: Positive = 0.1
    stop: NotNegative = 0.05
    activation_weight: NotNegative = 1.0
    memory_weight: NotNegative = 10.0
    margin: NotNegative = 3.0
    hardest: AtLeastOne = 1000
    text: Text = field(default_factory=lambda: Text(tokens=64 * 32, length=32))
    name: str = "t_patcher"

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """Takes the other text, which is kept on disk where it is sampled."""
        lm.architecture.require_one_text(self.name)
        self.text.sequences(lm)

    @together
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> AddedNeuronsEdit:
        """The neurons of an earlier edit and further ones; the earlier edit itself stays as it is.

        Raises:
            EditRefusedError: a fact asks for an erasure, or no fact is left; or `previous` is of another kind, model or
                layer, or has no state.
            FactRefusedError: a fact's prompt has one token, or is too long; or its loss is not finite.
            IndexError: the model has no such layer.
            UnsupportedModelError: the layer is a mixture of experts, or its activation is not known.
        """
        require_targets(self.name, facts)
        lm.architecture.require_decoder(self.name)
        layer = self.resolved_layer(lm)
        memory = lm.memory(layer)
        _ = memory.d_ffn  # which a mixture has not
        own = check_previous(self.name, lm, [layer], previous, AddedNeuronsEdit)
        state = PatcherState(()) if own is None else state_of(self.name, own, PatcherState)
        kept = state.kept(facts)
        counts = [state.counts[number] for number in kept]
        with without(lm, previous):
            patching = _Patching(self, SideLayer(lm, layer), [state.facts[number] for number in kept], facts)
            neurons = patching.none if own is None else _of_entries(own, state.counts, kept)
            report: list[dict[str, Any]] = []
            for number in in_turn(range(len(facts)), self.name):
                new, figures = patching.learn(number, neurons)
                report.append(figures)
                counts.append(len(new[0]))
                neurons = _together(neurons, new)
        origin = Origin.of(lm, self, *reports_after(own, facts, report))
        after = PatcherState(state.followed(kept, facts).facts, tuple(counts))
        return AddedNeuronsEdit(origin, layer, memory.path, *neurons, state=after)


class _Patching:
    """One call of `TPatcher.extend`: the facts whose neurons stay, and the new ones."""

    def __init__(self, settings: TPatcher, side: SideLayer, before: Sequence[Fact], facts: Sequence[Fact]) -> None:
        self.settings, self.side, self.facts = settings, side, facts
        lm, self.memory = side.lm, side.memory
        asked = [target_rows(lm, fact, end=False) for fact in (*before, *facts)]
        queries = _queries(side, asked)
        self.rows: Rows = side.run(asked[len(before) :])
        self.queries = queries[len(before) :]
        for fact, of in zip(facts, self.queries, strict=True):
            if not bool(of.isfinite().all()):
                raise FactRefusedError(fact, "what enters the layer's network is not finite")
        told = [of[n - 1 : -1] for of, (_, n) in zip(queries, asked, strict=True)]
        self._told, self._before = told, len(before)
        self._text = torch.cat(_queries(side, [(ids, len(ids)) for ids in settings.text.sequences(lm)]))

    @property
    def none(self) -> Neurons:
        """No neurons."""
        empty = torch.zeros(0, self.memory.d_model)
        return empty, empty, torch.zeros(0), empty

    @differentiable()
    def learn(self, number: int, earlier: Neurons) -> tuple[Neurons, dict[str, Any]]:
        """The neurons of a fact beside earlier ones, and its report."""
        settings, memory, fact = self.settings, self.memory, self.facts[number]
        device = memory.weight.device
        row = self.rows.pick([number])
        forward, inputs = RowsForward(self.side, row), self.queries[number][None].to(device)
        remembered = torch.cat([self._text, *self._told[: self._before + number]]).to(device)
        base = answer(memory, inputs, *(part.to(device) for part in earlier)).detach()
        prompt = row.prompts[0]
        with torch.no_grad():
            wrong = (forward.logits(base).argmax(-1) != forward.targets).nonzero()[:, 0].tolist()
        at = torch.tensor((wrong or [0])[: settings.most], device=device) + prompt - 1
        q = inputs[0, at]
        keys = (q / q.square().sum(1, keepdim=True)).requires_grad_()
        ups = keys.detach().clone() if memory.is_gated else keys.detach()[:0]
        biases = torch.zeros(len(q), device=device).requires_grad_()
        values = torch.zeros_like(q).requires_grad_()
        scale = memory.read(self.rows.coefficients[number][at.cpu()].to(device)).float().square().mean().sqrt()
        read = [keys, biases] if memory.has_key_bias else [keys]
        groups = [{"params": read, "lr": settings.key_lr * float(keys.detach().square().mean().sqrt())}]
        groups.append({"params": [values], "lr": settings.lr * max(float(scale), 1e-6)})
        optimiser, losses = torch.optim.Adam(groups), list[float]()
        for step in range(settings.steps + 1):
            with torch.set_grad_enabled(step < settings.steps):
                nll = forward.nll(base + answer(memory, inputs, keys, ups, biases, values))[0]
                told = (q * keys).sum(1) + biases
                others = remembered @ keys.T + biases
                loss = nll + self._kept_apart(told, others)
            losses.append(float(nll.detach()))
            if not bool(loss.isfinite()):
                raise FactRefusedError(fact, "the loss is not finite; the neurons are left as they were")
            silent = float(others.detach().max()) <= -settings.margin
            if step == settings.steps or (losses[-1] < settings.stop and silent):
                break
            optimiser.zero_grad()
            loss.backward()
            if losses[-1] < settings.stop:
                values.grad = None
            optimiser.step()
        figures = {"neurons": len(q), "loss": losses[-1], "step_losses": losses, "steps": len(losses) - 1}
        figures |= {"own_activation": float(told.detach().min()), "other_activation": float(others.detach().max())}
        return tuple(part.detach().cpu() for part in (keys, ups, biases, values)), figures  # type: ignore[return-value]

    def _kept_apart(self, told: Tensor, others: Tensor) -> Tensor:
        """The activation and the memory loss, weighted.

        `told`, (neuron,), is a of each neuron at its own query, `others`, (query, neuron), at remembered queries.
        """
        settings = self.settings

        def smooth(activations: Tensor) -> Tensor:
            flat = activations.flatten()
            return flat.topk(min(settings.hardest, len(flat))).values.exp().mean()

        memory = smooth(others + settings.margin) + smooth(others - told + settings.margin)
        return settings.activation_weight * (-told).exp().mean() + settings.memory_weight * memory


def _queries(side: SideLayer, sequences: Sequence[tuple[Sequence[int], int]]) -> list[Tensor]:
    """What enters the layer's FFN at each token of texts, each with the length of its prompt: (its tokens, d_model).

    In float32 on the CPU.
    """
    found: dict[int, Tensor] = {}
    seen: list[Tensor] = []

    def keep(inputs: Tensor, _output: Tensor) -> None:
        seen[:] = [inputs.detach().float().cpu()]

    for group in groups_of([len(ids) for ids, _ in sequences]):
        batch = side.lm.batch([sequences[i][0] for i in group], [sequences[i][1] for i in group])
        with side.memory.respond(keep), torch.no_grad():
            forward_to(side.lm, batch, side.layer)
        found |= {i: seen[0][place, : len(sequences[i][0])] for place, i in enumerate(group)}
    return [found[i] for i in range(len(sequences))]


def _of_entries(edit: AddedNeuronsEdit, counts: Sequence[int], kept: Sequence[int]) -> Neurons:
    """The neurons of some facts of an edit."""
    owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    stay = torch.isin(owner, torch.tensor(kept, dtype=torch.long))
    ups = edit.ups[stay] if len(edit.ups) else edit.ups
    return edit.keys[stay], ups, edit.biases[stay], edit.values[stay]


def _together(one: Neurons, other: Neurons) -> Neurons:
    return tuple(torch.cat(parts) for parts in zip(one, other, strict=True))  # type: ignore[return-value]
