"""How much each FFN coefficient at the predicting positions matters to the probability of an answer.

With m the coefficients of a layer at the positions that predict the answer, and P the answer's probability:

    integrated gradients   m_i * mean over a of dP(m := a m) / dm_i      (Dai et al. 2022, equations 2 and 3)
    gradient               m_i * dP / dm_i
    activation             |m_i|

The equations scale one coefficient and leave the others; here all of a layer are scaled together, so that a layer's
attributions add up to what its coefficients are worth (completeness). As dP/dm = dP/dFFN V^T, the gradient is taken at
the layer's output and brought to the neurons by one product. One batch goes up through what has to run of the model,
joined at each layer by the rows in which that layer's coefficients are scaled, and comes back down in one backward.

Where an applied edit that is routed by the prompt answers (a codebook, a side memory), that is held, and m V counts in
its layer as a part of what it answers: completeness is then none of a forward in which the edit decides again.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.differentiable import differentiable
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import Recording, record
from locate.question import Question

Method = Literal["integrated_gradients", "gradient", "activation"]
Rule = Literal["midpoint", "right"]
METHODS: tuple[Method, ...] = get_args(Method)
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True)
class Attribution:
    """What `attribute` finds for one question.

    Attributes:
        attributions: (layer, d_ffn), summed over the predicting positions; the mean over them for "activation".
        activations: |m|, (layer, d_ffn), the mean over the predicting positions.
        probability: P, of the whole answer, with nothing changed.
    """

    attributions: Tensor
    activations: Tensor
    probability: float


def attribute(
    lm: LanguageModel,
    questions: Sequence[Question],
    layers: Sequence[int],
    method: Method = "integrated_gradients",
    steps: int = 20,
    rule: Rule = "midpoint",
    max_tokens: int = 192,
) -> list[Attribution]:
    """For each question the attributions of its answer's probability to the coefficients of each of some layers.

    An answer of several tokens counts by the product of their probabilities under teacher forcing, and the coefficients
    at all the positions that predict them are scaled together. `steps` values of a stand for the integral, by the rule
    in the middle of as many equal parts of [0, 1] or at their right ends. Layers ascend; at most `max_tokens` run at
    once, padding included. Raises ValueError: `steps` or `max_tokens` is below 1, the method or the rule is unknown, or
    the layers do not ascend.
    """
    scales = path(method, steps, rule)
    if list(layers) != sorted(set(layers)):
        raise ValueError(f"the layers have to ascend, got {list(layers)}")
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
    found = []
    for group in _groups(questions, max_tokens):
        found += _Group(lm, group, layers, keep=bool(scales)).attributed(method, scales, max_tokens)
    return found


def path(method: Method, steps: int, rule: Rule) -> list[float]:
    """The values of a at which a method takes gradients: none for "activation", 1 for "gradient".

    Raises:
        ValueError: a parameter is out of its range.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; the methods are {', '.join(METHODS)}")
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r}; the rules are {', '.join(RULES)}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    if method == "integrated_gradients":
        return [(step + (0.5 if rule == "midpoint" else 1.0)) / steps for step in range(steps)]
    return [1.0] if method == "gradient" else []


def _groups(questions: Sequence[Question], max_tokens: int) -> Iterator[list[Question]]:
    """Neighbours that fit into one recording."""
    group: list[Question] = []
    for question in questions:
        if group and (len(group) + 1) * max(len(q.ids) for q in (*group, question)) > max_tokens:
            yield group
            group = []
        group.append(question)
    if group:
        yield group


Pair = tuple[int, float]
"""A question's number, and what its coefficients are multiplied by."""


class _Group:
    """Some questions whose forward has been recorded once.

    What belongs to predicting positions lies in tensors (place, ...), the questions' places one after another.
    """

    def __init__(self, lm: LanguageModel, questions: Sequence[Question], layers: Sequence[int], keep: bool) -> None:
        self.lm = lm
        self.questions = questions
        self.layers = layers
        self.memories = [lm.memory(layer) for layer in layers]
        batch = lm.batch([each.ids for each in questions], [each.n_prompt for each in questions])
        self.device = batch.lengths.device
        self.mask = torch.zeros(batch.input_ids.shape, dtype=torch.bool, device=self.device)
        self.places: list[Tensor] = []
        begin = 0
        for number, question in enumerate(questions):
            self.mask[number, list(question.predicting)] = True
            self.places.append(torch.arange(begin, begin + len(question.predicting), device=self.device))
            begin += len(question.predicting)
        self.owner = self.mask.nonzero(as_tuple=True)[0]
        self.counts = self.mask.sum(1)
        self.targets = torch.tensor([token for q in questions for token in q.answer_ids], device=self.device)
        self.first = torch.tensor([question.predicting[0] for question in questions], device=self.device)
        with ExitStack() as stack:
            seen = [stack.enter_context(memory.capture(self.mask)) for memory in self.memories]
            self.recording: Recording = record(lm, batch, layers if keep else [], self.mask)
        self.coefficients = [layer.coefficients for layer in seen]
        self.outputs = [layer.output for layer in seen]
        # What of the output goes with the coefficients; b2, and whatever else an edit may add to it, stays.
        self.moving = [
            m.to(memory.values) @ memory.values for m, memory in zip(self.coefficients, self.memories, strict=True)
        ]
        assert self.recording.logits is not None
        self.probabilities = self._probabilities(self.recording.logits, self.owner, self.targets, len(questions))

    def attributed(self, method: Method, scales: Sequence[float], max_tokens: int) -> list[Attribution]:
        """The attributions of each question."""
        activations = torch.stack([self._per_question(m.float().abs()) for m in self.coefficients])
        activations = activations / self.counts.to(activations.device)[:, None]
        attributions = activations
        if scales:
            gradients = self._gradients(scales, max_tokens)
            attributions = torch.stack(
                [
                    self._per_question(m.float() * (gradient @ memory.values.float().T))
                    for m, gradient, memory in zip(self.coefficients, gradients, self.memories, strict=True)
                ]
            )
        return [
            Attribution(attributions[:, number].cpu(), activations[:, number].cpu(), float(probability))
            for number, probability in enumerate(self.probabilities)
        ]

    def _gradients(self, scales: Sequence[float], max_tokens: int) -> list[Tensor]:
        """For each layer the mean over the scales of dP/dFFN, (place, d_model), in float32."""
        totals = [torch.zeros_like(output, dtype=torch.float32) for output in self.outputs]
        # A model that cannot start in the middle of a text runs all of it.
        skipped = [0 if self.recording.cache is None else question.predicting[0] for question in self.questions]
        width = max(len(question.ids) - n for question, n in zip(self.questions, skipped, strict=True))
        pairs = [(number, scale) for number in range(len(self.questions)) for scale in scales]
        n_rows = max(1, max_tokens // width)
        n_pairs = min(n_rows, len(pairs))
        n_layers = n_rows // n_pairs
        for first in range(0, len(pairs), n_pairs):
            for lowest in range(0, len(self.layers), n_layers):
                numbers = range(lowest, min(lowest + n_layers, len(self.layers)))
                batch = pairs[first : first + n_pairs]
                for number, gradient in zip(numbers, self._run(batch, numbers), strict=True):
                    totals[number].index_add_(0, self._places(batch).to(gradient.device), gradient)
        return [total / len(scales) for total in totals]

    @differentiable()
    def _run(self, pairs: Sequence[Pair], numbers: Sequence[int]) -> list[Tensor]:
        """One batch up through the model, joined at each layer by a row for each pair, and back.

        For each layer of the numbers dP/dFFN, (position, d_model), the pairs' positions one after another.
        """
        which = torch.tensor([question for question, _ in pairs], device=self.device)
        scale = torch.tensor([scale for _, scale in pairs], device=self.device)
        place = self._places(pairs)
        change = torch.repeat_interleave(scale, self.counts[which])[:, None] - 1
        leaves: list[Tensor] = []
        states: Tensor | None = None
        for step, number in enumerate(numbers):
            layer, last = self.layers[number], number == numbers[-1]
            above = None if last else self.layers[number + 1]
            rows = which.repeat(step + 1)
            partial = PartialForward(self.lm, self._narrowed(layer, above), layer, self.first[rows], rows)
            local = partial.local(self.mask[rows])
            new = torch.arange(len(rows), device=self.device) >= step * len(pairs)
            output, moving = self.outputs[number], self.moving[number]
            where = place.to(output.device)
            leaf = output[where] + (change.to(output.device) * moving[where]).to(output)
            leaves.append(leaf.requires_grad_())
            if states is not None and partial.states is not None:
                states = torch.cat([states, partial.states[step * len(pairs) :].to(states.device)])
            with self.memories[number].replace(leaf, local & new[:, None]):
                if above is not None:
                    states = partial.states_entering(above, states)
                else:
                    logits = partial.logits(local, states)
        n_rows = len(numbers) * len(pairs)
        owner = torch.repeat_interleave(
            torch.arange(n_rows, device=self.device), self.counts[which].repeat(len(numbers))
        )
        # dP = P dlog P: through the model goes the gradient of log P, as that of a small P is 0 in 16 bits.
        slope, p = self._slope(logits, owner, place.repeat(len(numbers)), n_rows)
        gradients = torch.autograd.grad(logits, leaves, slope)
        return [
            gradient.float() * each.to(gradient.device)[:, None]
            for gradient, each in zip(gradients, p.chunk(len(numbers)), strict=True)
        ]

    def _places(self, pairs: Sequence[Pair]) -> Tensor:
        """The places of the pairs' questions, one after another."""
        return torch.cat([self.places[question] for question, _ in pairs])

    def _narrowed(self, layer: int, above: int | None) -> Recording:
        """The recording with the attention of the layers that run, so that no more is gathered."""
        cache = self.recording.cache
        if cache is None:
            return self.recording
        end = self.lm.n_layers if above is None else above
        tensors = tuple(
            pair if layer <= number < end else (pair[0][:, :1, :, :1], pair[1][:, :1, :, :1])
            for number, pair in enumerate(cache)
        )
        return replace(self.recording, cache=tensors)

    @torch.no_grad()
    def _slope(self, logits: Tensor, owner: Tensor, place: Tensor, n_rows: int) -> tuple[Tensor, Tensor]:
        """Of each row's whole answer dlog P/dlogits, 1[token is the target] - p(token), and P, (place,).

        The first is (place, vocabulary).
        """
        owner, targets = owner.to(logits.device), self.targets[place].to(logits.device)[:, None]
        likely = logits.float().softmax(-1)
        logs = likely.gather(1, targets).log()
        whole = logs.new_zeros(n_rows).index_add(0, owner, logs[:, 0]).exp()[owner]
        likely.neg_().scatter_add_(1, targets, torch.ones_like(logs))
        return likely.to(logits.dtype), whole

    def _per_question(self, at_places: Tensor) -> Tensor:
        """Sums over each question's places: (place, width) -> (question, width)."""
        sums = at_places.new_zeros(len(self.questions), at_places.shape[1])
        return sums.index_add(0, self.owner.to(at_places.device), at_places)

    @staticmethod
    def _probabilities(logits: Tensor, row: Tensor, targets: Tensor, n_rows: int) -> Tensor:
        """Of whole answers, (row,), from logits (place, vocabulary)."""
        row, targets = row.to(logits.device), targets.to(logits.device)
        logs = logits.float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
        return logs.new_zeros(n_rows).index_add(0, row, logs).exp()
