"""How far the model's way from a subject to its object, in one relation, is an affine map.

Hernandez et al. 2024, "Linearity of Relation Decoding in Transformer Language Models". A map is *faithful* to a subject
where it and the model say the same first token: argmax D(beta W s + b) = argmax D(o), D the final norm and the head. It
is *causal* where W_r^+ (o' - o), added to the subject's state, makes the model say the object of another subject.
(`corrigenda.linear_relations` has W, b and the inverse.)

The layer, beta and the rank are chosen on the training samples: layer and beta by the held-out faithfulness (a sample's
map is that of the others), then the rank by the causality there; where counts are equal, by the mean log-probability.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.data.relation_facts import RelationFacts
from corrigenda.errors import SettingsError
from corrigenda.linear_relations import (
    AffineMaps,
    SampleStates,
    affine_maps,
    changed_logits,
    low_rank_inverses,
    read_samples,
)
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import AtLeastOne, Count, Positive, Seed, checked
from locate.flow.relation_results import LinearRelation
from locate.lens.words import final_norm, read_states, token_texts
from locate.question import UnknownFactError

BETAS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
EMBEDDING = 0
"""The layer that embeddings enter: the map of the control."""


@dataclass(frozen=True)
@checked
class RelationDecoding:
    """How a relation's map is made and measured.

    Attributes:
        samples: over how many Jacobians the map is the mean; at most half of the relation's samples. The paper's is 8.
        tests: on how many other samples it is measured at most; None for all.
        layers: which the subject's state may enter; None for all but the lowest.
        betas: among which beta is chosen.
        ranks: among which the inverse's rank is chosen.
        seed: of the draw of samples.

    Raises:
        SettingsError: there is nothing to choose from, or there is only one sample.
    """

    result: ClassVar = LinearRelation
    samples: AtLeastOne = 8
    tests: AtLeastOne | None = 30
    layers: tuple[Count, ...] | None = None
    betas: tuple[Positive, ...] = BETAS
    ranks: tuple[AtLeastOne, ...] = RANKS
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise SettingsError(f"RelationDecoding: samples={self.samples} must be 2 or more: each has an example")
        for name in ("layers", "betas", "ranks"):
            if getattr(self, name) == ():
                raise SettingsError(f"RelationDecoding: {name}=() leaves nothing to choose from; name one or more")

    def check(self, lm: LanguageModel) -> None:
        """Says whether the settings fit a model.

        Raises:
            IndexError: the model has no such layer.
            UnsupportedModelError: the model is an encoder or an encoder-decoder, or has no final norm.
        """
        lm.architecture.require_one_text("linear relations")
        final_norm(lm)
        for layer in self.layers or ():
            lm.architecture.block(layer)

    @one_thread
    def find(self, lm: LanguageModel, relation: RelationFacts, answer: str | None = None) -> LinearRelation:
        """Makes the map of one relation, and measures it.

        Args:
            lm: a causal model, with whatever edits are applied.
            relation: its samples; of them some are drawn to make the map, and others to measure it.
            answer: there is none to give: objects are the samples' own.

        Raises:
            ContextLengthError: the samples are longer than the model reads.
            UnknownFactError: the model says no test sample's object.
            ValueError: the relation has fewer than three samples, an answer is given, or the model gives no numbers.
        """
        self.check(lm)
        if answer is not None:
            raise ValueError(f"answer={answer!r}: a relation's answers are its samples' objects; leave it out")
        training, tests = self._drawn(relation)
        layers = tuple(range(1, lm.n_layers)) if self.layers is None else self.layers
        others = [[*training[:i], *training[i + 1 :]] for i in range(len(training))]
        every = sorted({EMBEDDING, *layers})
        samples = read_samples(lm, training, others, every, every)
        maps = affine_maps(lm, samples)
        if not all(bool(part.isfinite().all()) for part in (maps.weights, maps.biases)):
            raise ValueError(f"{lm.name} gives no numbers (NaN or infinity) for {relation.name!r}; is it wrecked?")
        said = read_states(lm, samples.o).argmax(-1)
        scores = {layer: self._held_out(lm, samples, maps, layer, said) for layer in every}
        layer, beta = max(
            ((layer, place) for layer in layers for place in range(len(self.betas))),
            key=lambda one: scores[one[0]][:, one[1]].tolist(),
        )
        ranks = tuple(sorted({min(rank, lm.memory(0).d_model) for rank in self.ranks}))
        weight, _ = maps.at(layer)
        by_rank = _by_rank(lm, samples, layer, weight, ranks, said)
        rank = max(range(len(ranks)), key=lambda place: (*by_rank[:, place].tolist(), -place))
        seen = read_samples(lm, tests, [training] * len(tests), tuple(sorted({EMBEDDING, layer})), [layer])
        own = max(range(len(self.betas)), key=lambda place: scores[EMBEDDING][:, place].tolist())
        betas = {layer: self.betas[beta], EMBEDDING: self.betas[own]}
        figures = _measured(lm, samples, maps, seen, layer, betas, ranks[rank])
        if not figures["known"].any():
            raise UnknownFactError(
                f"{lm.name} says the object of none of {len(tests)} test samples of {relation.name!r}"
            )
        return LinearRelation(
            relation=relation.name,
            prompt=relation.statement,
            training=tuple(fact.subject for fact in training),
            tests=tuple(fact.subject for fact in tests),
            objects=tuple(str(fact.target_true) for fact in tests),
            layer=layer,
            beta=self.betas[beta],
            rank=ranks[rank],
            weight=weight.float().cpu(),
            bias=maps.at(layer)[1].float().cpu(),
            layers=layers,
            betas=self.betas,
            ranks=ranks,
            held_out=torch.stack([scores[each][0] for each in layers]),
            by_rank=by_rank[0],
            **figures,
        )

    def _drawn(self, relation: RelationFacts) -> tuple[list[Fact], list[Fact]]:
        """The samples that make the map, and those that measure it."""
        facts = list(relation.facts)
        if len(facts) < 3:
            raise ValueError(
                f"the relation {relation.name!r} has {len(facts)} sample{'s' * (len(facts) != 1)} with a subject of "
                "its own, and a map needs 3 or more: two to make it and one to measure it"
            )
        random.Random(self.seed).shuffle(facts)
        n = max(2, min(self.samples, len(facts) // 2))
        return facts[:n], facts[n : None if self.tests is None else n + self.tests]

    def _held_out(self, lm: LanguageModel, samples: SampleStates, maps: AffineMaps, layer: int, said: Tensor) -> Tensor:
        """The share of training samples that the others' map is faithful to, and the mean log P, (2, beta)."""
        place = maps.layers.index(layer)
        betas = torch.tensor(self.betas, dtype=samples.s.dtype, device=samples.s.device)[:, None]
        states = betas * maps.held_out[:, place, None] + maps.held_out_biases[:, place, None]
        return _agreement(read_states(lm, states), said[:, None].expand(-1, len(self.betas)))


@one_thread
def linear_relation(lm: LanguageModel, facts: Sequence[Fact], name: str = "", **settings: Any) -> LinearRelation:
    """The map of one relation: `RelationDecoding(**settings).find(...)`.

    Args:
        lm: a causal model.
        facts: samples of the relation: each one's true object counts.
        name: the relation's, for the result.
        settings: of `RelationDecoding`.

    Raises:
        ValueError: a fact has no true object; or as `RelationDecoding.find` says.
    """
    without = next((fact for fact in facts if fact.target_true is None), None)
    if without is not None:
        raise ValueError(f"linear_relation: the fact {without.id!r} has no true object (target_true); give it one")
    samples = {fact.subject.casefold(): fact for fact in reversed(facts)}
    names = [name, *(str(fact.relation or fact.prompt) for fact in facts[:1])]
    relation = RelationFacts(next(filter(None, names), ""), tuple(reversed(samples.values())))
    return RelationDecoding(**settings).find(lm, relation)


def _agreement(logits: Tensor, wanted: Tensor) -> Tensor:
    """How often (sample, choice) the top token is the wanted one, and its mean log-probability: (2, choice)."""
    logs = logits.float().log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
    hits = (logits.argmax(-1) == wanted).float()
    return torch.stack([hits.mean(0), logs.mean(0)]).cpu()


def _partners(said: Tensor, among: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of samples with unlike answers: each with the next one, around the end, that has another."""
    found = []
    for place, i in enumerate(among):
        after = [*among[place + 1 :], *among[:place]]
        j = next((j for j in after if int(said[j]) != int(said[i])), None)
        if j is not None:
            found.append((i, j))
    return found


def _by_rank(
    lm: LanguageModel, samples: SampleStates, layer: int, weight: Tensor, ranks: Sequence[int], said: Tensor
) -> Tensor:
    """The causality over pairs of training samples, and the mean log P of what is wanted, (2, rank)."""
    pairs = _partners(said, range(len(said)))
    if not pairs:
        return torch.zeros(2, len(ranks))
    i, j = torch.tensor(pairs, device=said.device).T
    difference = samples.o[j] - samples.o[i]
    deltas = torch.stack(
        [difference @ inverse.T for inverse in low_rank_inverses(weight, ranks)], 1
    )  # (pair, rank, d_model)
    rows = i[:, None].expand(-1, len(ranks)).flatten()
    logits = changed_logits(lm, samples, layer, rows, deltas.flatten(0, 1)).unflatten(0, (len(pairs), len(ranks)))
    return _agreement(logits, said[j][:, None].expand(-1, len(ranks)))


def _measured(
    lm: LanguageModel,
    samples: SampleStates,
    maps: AffineMaps,
    seen: SampleStates,
    layer: int,
    betas: Mapping[int, float],
    rank: int,
) -> dict[str, Any]:
    """What `LinearRelation` says of the test samples."""
    said = read_states(lm, seen.o).argmax(-1)
    known = said == seen.objects
    (weight, bias), s = maps.at(layer), seen.at(layer)
    embedded, shift = maps.at(EMBEDDING)
    states = {
        "map": betas[layer] * s @ weight.T + bias,
        "identity": s,
        "translation": s + (samples.o - samples.at(layer)).mean(0),
        "bias": bias.expand_as(s),
        "embedding": betas[EMBEDDING] * seen.at(EMBEDDING) @ embedded.T + shift,
    }
    answers = {name: read_states(lm, state).argmax(-1) for name, state in states.items()}
    pairs = _partners(said, known.nonzero()[:, 0].tolist())
    changed = {"inverse": torch.zeros(0, dtype=torch.bool), "other_subject": torch.zeros(0, dtype=torch.bool)}
    if pairs:
        i, j = torch.tensor(pairs, device=said.device).T
        deltas = {
            "inverse": (seen.o[j] - seen.o[i]) @ low_rank_inverses(weight, [rank])[0].T,
            "other_subject": s[j] - s[i],
        }
        for name, delta in deltas.items():
            changed[name] = (changed_logits(lm, seen, layer, i, delta).argmax(-1) == said[j]).cpu()
    return {
        "known": known.cpu(),
        "faithful": (answers["map"] == said).cpu(),
        "controls": {name: (answers[name] == said).cpu() for name in states if name != "map"},
        "causal": changed["inverse"],
        "substituted": changed["other_subject"],
        "pairs": tuple(pairs),
        "says": token_texts(lm, said.tolist()),
        "decoded": token_texts(lm, answers["map"].tolist()),
    }
