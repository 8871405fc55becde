"""Editors of single neurons: suppress, enhance, update and erase (Dai et al. 2022, sections 4.3 and 5).

Which neurons those are is given, or asked of a locator: a callable that takes the model and a fact and returns places
(layer, neuron). Editors and locators do not know each other; a configuration or the user brings them together.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from corrigenda import CoefficientEdit, Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.forward.interventions import Apply, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import Site
from corrigenda.prompts import encode_target
from editing.editor import EditRefusedError

Neuron = tuple[int, int]
"""A layer (negative: from the end) and the number of a coefficient, key and value in it."""

Find = Callable[[LanguageModel, Fact], Iterable[Neuron]]


@dataclass(frozen=True)
class NeuronEditor:
    """What the neuron editors have in common: where the neurons come from.

    Attributes:
        neurons: places (layer, neuron), the same for every fact; or for each fact's id its own.
        find: what finds the neurons of a fact, instead.

    Raises:
        ValueError: neither or both are given.
    """

    neurons: Sequence[Neuron] | Mapping[str, Sequence[Neuron]] | None = None
    find: Find | None = None

    name: ClassVar[str]

    def __post_init__(self) -> None:
        if (self.neurons is None) == (self.find is None):
            raise ValueError(f"{type(self).__name__} needs either neurons or a callable that finds them")
        if isinstance(self.neurons, Mapping):
            given: Any = {str(name): _places(places) for name, places in self.neurons.items()}
        else:
            given = None if self.neurons is None else _places(self.neurons)
        object.__setattr__(self, "neurons", given)

    def neurons_of(self, lm: LanguageModel, fact: Fact) -> tuple[Neuron, ...]:
        """The neurons of one fact, layers counted from the first.

        Raises:
            EditRefusedError: there are none, or the locator cannot say.
            IndexError: the model has no such neuron.
        """
        if self.find is not None:
            try:
                places = _places(self.find(lm, fact))
            except ValueError as error:
                raise EditRefusedError(f"{self.name}: no neurons for fact {fact.id!r}: {error}") from error
        elif isinstance(self.neurons, Mapping):
            if fact.id not in self.neurons:
                raise EditRefusedError(f"{self.name}: no neurons are given for fact {fact.id!r}")
            places = _places(self.neurons[fact.id])
        else:
            places = _places(self.neurons or ())
        if not places:
            raise EditRefusedError(f"{self.name}: fact {fact.id!r} has no neuron to change")
        return tuple(dict.fromkeys(lm.memory(layer).place(neuron) for layer, neuron in places))

    def neurons_of_all(self, lm: LanguageModel, facts: Sequence[Fact]) -> list[tuple[Neuron, ...]]:
        """The neurons of each fact.

        Raises:
            EditRefusedError: there is no fact, or one has no neurons.
        """
        if not facts:
            raise EditRefusedError(f"{self.name}: no fact to edit")
        return [self.neurons_of(lm, fact) for fact in facts]

    def origin(self, lm: LanguageModel, facts: Sequence[Fact], found: Sequence[Sequence[Neuron]]) -> Origin:
        """Where an edit comes from; the neurons of each fact stand in its report."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        settings["find"] = _described(self.find)
        report = tuple({"neurons": [list(place) for place in places]} for places in found)
        return Origin(lm.name, lm.fingerprint, self.name, settings, tuple(facts), report)


@dataclass(frozen=True)
class _ScaleNeurons(NeuronEditor):
    """Multiplies the coefficients of the facts' neurons, at every position.

    Attributes:
        factor: by what.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.factor):
            raise ValueError(f"the factor must be a finite number, not {self.factor}")

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> CoefficientEdit:
        """An edit of the neurons of all the facts; what the facts' new objects are does not matter.

        Raises:
            EditRefusedError: there is no fact, or one has no neurons.
            IndexError: the model has no such neuron.
        """
        found = self.neurons_of_all(lm, facts)
        factors = {place: self.factor for places in found for place in places}
        return CoefficientEdit.of(lm, self.origin(lm, facts, found), factors)


@dataclass(frozen=True)
class Suppress(_ScaleNeurons):
    """Suppresses the facts' neurons: coefficients times 0."""

    name: ClassVar[str] = "suppress"

    factor: float = 0.0


@dataclass(frozen=True)
class Enhance(_ScaleNeurons):
    """Enhances the facts' neurons: coefficients times 2."""

    name: ClassVar[str] = "enhance"

    factor: float = 2.0


@dataclass(frozen=True)
class UpdateNeurons(NeuronEditor):
    """Writes the new object over the old one in the values of a fact's neurons (Dai et al. 2022, section 5.1).

        v_i <- v_i + sign(m_i) |v_i| (write e(new) - unwrite e(old))

    e(token) is the token's unembedding row brought to the space of the values: the direction, of length one, that
    raises its logit most where the prompt ends; that is the row, taken back through the model's final norm. The token
    is the object's first. The sign is that of the neuron's coefficient there: of a plain FFN's it is nearly always
    positive, and the formula is the paper's; in a gated FFN it may be either, and a value with a negative coefficient
    has to be pushed the other way.

    A fact without an old object (insert) or a new one (erase) has only the other of the two terms.

    Attributes:
        unwrite: lambda_1, how much of the old object is taken away, relative to the value's norm.
        write: lambda_2, how much of the new one is added.
    """

    name: ClassVar[str] = "update_neurons"

    unwrite: float = 1.0
    write: float = 8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("unwrite", "write"):
            if not math.isfinite(getattr(self, field)):
                raise ValueError(f"{field} must be a finite number, not {getattr(self, field)}")

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        """An update of rank one for each fact in each layer that has neurons of it.

        Raises:
            EditRefusedError: there is no fact, or one has no neurons; or the statement for a masked model has no mask.
            IndexError: the model has no such neuron.
        """
        found = self.neurons_of_all(lm, facts)
        columns: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for fact, places in zip(facts, found, strict=True):
            coefficients, directions = _read(lm, fact, sorted({layer for layer, _ in places}))
            change = -self.unwrite * directions[0] + self.write * directions[1]
            for layer, m in coefficients.items():
                values = lm.memory(layer).values.float()
                which = torch.tensor([neuron for where, neuron in places if where == layer], device=values.device)
                left = torch.zeros(len(values), 1, device=values.device)
                left[which, 0] = m[which].sign() * values[which].norm(dim=1)
                columns.setdefault(layer, []).append((left, change[None]))
        factors = {
            layer: (torch.cat([left for left, _ in pairs], dim=1), torch.cat([right for _, right in pairs]))
            for layer, pairs in columns.items()
        }
        return LowRankEdit.of(lm, self.origin(lm, facts, found), factors)


@dataclass(frozen=True)
class EraseNeurons(NeuronEditor):
    """Erases the values of the neurons that the facts of a relation share (Dai et al. 2022, section 5.2).

    Facts of one `relation` are taken together; a fact that names none stands alone.

    Attributes:
        fill: what a value becomes: "zero", or the "mean" of its layer's values.
        share: neurons of more than this share of a relation's facts are erased. (The paper's rule is share=0, most=20.)
        most: at most so many of a relation, those that most facts have; None for all.
    """

    name: ClassVar[str] = "erase_neurons"

    fill: Literal["zero", "mean"] = "zero"
    share: float = 0.7
    most: int | None = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fill not in ("zero", "mean"):
            raise ValueError(f"values are filled with 'zero' or 'mean', not {self.fill!r}")
        if not 0 <= self.share < 1:
            raise ValueError(f"the share of facts must lie in [0, 1), not {self.share}")
        if self.most is not None and self.most < 1:
            raise ValueError(f"most must be at least 1, not {self.most}")

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        """An update that replaces the values of the shared neurons.

        Raises:
            EditRefusedError: there is no fact, one has no neurons, or the facts of a relation share none.
            IndexError: the model has no such neuron.
        """
        found = self.neurons_of_all(lm, facts)
        relations: dict[tuple[str, str], list[tuple[Neuron, ...]]] = {}
        for fact, places in zip(facts, found, strict=True):
            group = ("relation", fact.relation) if fact.relation else ("fact", fact.id)
            relations.setdefault(group, []).append(places)
        shared = [self._shared(*group, neurons) for group, neurons in relations.items()]
        by_layer: dict[int, list[int]] = {}
        for layer, neuron in sorted({place for places in shared for place in places}):
            by_layer.setdefault(layer, []).append(neuron)
        factors = {}
        for layer, neurons in by_layer.items():
            values = lm.memory(layer).values.float()
            which = torch.tensor(neurons, device=values.device)
            fill = values.mean(0) if self.fill == "mean" else torch.zeros_like(values[0])
            left = nn.functional.one_hot(which, len(values)).T.float()
            factors[layer] = (left, fill - values[which])
        return LowRankEdit.of(lm, self.origin(lm, facts, found), factors)

    def _shared(self, kind: str, group: str, found: Sequence[Sequence[Neuron]]) -> list[Neuron]:
        counts = Counter(place for places in found for place in places)
        # 0.7 * 10 must not fall below 7.
        kept = [place for place, count in counts.items() if count > self.share * len(found) + 1e-9]
        if not kept:
            raise EditRefusedError(
                f"{self.name}: no neuron is in more than {self.share:.0%} of the {len(found)} facts of {kind} "
                f"{group!r}; the most frequent is in {max(counts.values())}"
            )
        return sorted(kept, key=lambda place: (-counts[place], place))[: self.most]


def erase_relation(lm: LanguageModel, facts: Sequence[Fact], find: Find, **settings: Any) -> LowRankEdit:
    """Erases a relation from a model: `EraseNeurons` over facts that all name the same one.

    Args:
        lm: the model.
        facts: facts of the relation.
        find: what finds the neurons of a fact.
        settings: of `EraseNeurons`.

    Raises:
        ValueError: the facts name no relation, or several.
        EditRefusedError: as `EraseNeurons.edit`.
    """
    relations = {fact.relation for fact in facts}
    if len(relations) != 1 or None in relations:
        named = ", ".join(sorted(str(relation) for relation in relations)) or "no facts"
        raise ValueError(f"one relation can be erased at a time, and every fact has to name it; got {named}")
    return EraseNeurons(find=find, **settings).edit(lm, facts)


def _read(lm: LanguageModel, fact: Fact, layers: Sequence[int]) -> tuple[dict[int, Tensor], tuple[Tensor, Tensor]]:
    """What a fact's prompt shows where it is answered.

    Returns:
        for each layer the coefficients, (d_ffn,), in float32; and e of the old and of the new object, each (d_model,)
        (zero where there is no such object).
    """
    ids = lm.tokens(fact.statement)
    at = len(ids) - 1
    if not lm.architecture.family.causal:
        mask = lm.tokenizer.mask_token_id
        if mask not in ids:
            raise EditRefusedError(f"{lm.name} answers at a mask, and the statement of fact {fact.id!r} has none")
        at = ids.index(mask)
    before_head: list[Tensor] = []

    def leaf(state: Tensor) -> Tensor:
        before_head.append(state.detach().requires_grad_())
        return before_head[0]

    batch = lm.batch([ids])
    place = torch.tensor([at], device=batch.lengths.device)
    with ExitStack() as stack, torch.enable_grad():
        seen = {layer: stack.enter_context(lm.memory(layer).capture(place)) for layer in layers}
        # What leaves the last block: the final norm, and whatever else a family has there, lies behind it.
        stack.enter_context(intervene(lm, Site("block", -1), Apply(leaf)))
        logits = forward_logits(lm, batch, place)[0]
    directions = []
    for target in (fact.target_true, fact.target_new):
        if target is None:
            directions.append(torch.zeros_like(before_head[0][0, at], dtype=torch.float32))
            continue
        token = encode_target(lm.tokenizer, lm.reads(fact.statement), target)[0]
        [gradient] = torch.autograd.grad(logits[token], before_head[0], retain_graph=True)
        directions.append(nn.functional.normalize(gradient[0, at].float(), dim=0))
    return {layer: seen[layer].coefficients[0].detach().float() for layer in layers}, (directions[0], directions[1])


def _places(neurons: Iterable[Any]) -> tuple[Neuron, ...]:
    places = []
    for place in neurons:
        try:
            layer, neuron = place
            places.append((int(layer), int(neuron)))
        except (TypeError, ValueError):
            raise ValueError(f"a neuron is a pair (layer, number), not {place!r}") from None
    return tuple(places)


def _described(find: object) -> Any:
    """The locator as JSON values, for the edit's origin."""
    if find is None:
        return None
    if dataclasses.is_dataclass(find) and not isinstance(find, type):
        return {"name": type(find).__qualname__, **dataclasses.asdict(find)}
    if isinstance(find, partial):
        return {"name": getattr(find.func, "__qualname__", repr(find.func)), **find.keywords}
    return {"name": getattr(find, "__qualname__", type(find).__qualname__)}
