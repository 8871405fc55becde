"""`GateTraining`: learns from many relations when two prompts ask the same.

The states are centred and whitened by layer (the leading directions of their covariance), and two linear maps with a
GELU between take them to `width` numbers. They are learned by InfoNCE (van den Oord et al. 2018, "Representation
Learning with Contrastive Predictive Coding") in its form for several positives (Khosla et al. 2020, "Supervised
Contrastive Learning", eq. 2): with z of length 1 and P(i) the prompts of a batch that ask the same as i,

    L = mean over i of  -1/|P(i)| sum over p in P(i) of  log( exp(z_i z_p / t) / sum over a != i of exp(z_i z_a / t) )

A batch has prompts of many relations, in several forms each; the names recur, so that the hardest of the others are of
the same subject and another relation. Each prompt is there twice, bare and behind words that ask for an answer
(`editing.gate.questions.opened`); a batch has one of the two. The threshold is the cosine that the share `false_hits`
of such pairs reaches, in forms and about names that were set aside.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

import torch
import xxhash
from torch import Tensor, nn
from torch.nn import functional

from corrigenda.edits.gate import Gate, states_of
from corrigenda.errors import SettingsError, WrongModelError
from corrigenda.facts import Fact
from corrigenda.language_model import LanguageModel
from corrigenda.seeded import seeded
from corrigenda.settings.checked import AtLeastOne, Count, Positive, Seed, ShareAboveZero, ShareBelowOne, checked
from corrigenda.system.files import cache_folder, read_kept, write_checked
from corrigenda.system.progress import track
from editing.gate.questions import AskedPrompt, held_out_questions, opened, questions_of, shipped_questions

PIECE = 256
"""So many prompts are run before their states are written down."""
ROWS = 32
"""So many are run at once."""
VERSION = 2
"""Of the states that are kept on disk; those of 1 may be of an edited model."""
SHARES = (0.01, 0.05, 0.1)
"""At these shares of false hits it is said how many of the right ones pass."""
DEPTHS = (0.4, 0.6, 0.75)
"""Where layers are read by default, as shares of the model's depth."""
SMALLEST = 1e-3
"""What is added to a direction's deviation before it is divided by it, as a share of the largest."""


@dataclass(frozen=True)
@checked
class GateTraining:
    """How a gate is made; with ``steps=0`` it is not trained: the cosine of centred, whitened states.

    Attributes:
        layers: those that are read; None: three in the middle.
        components: directions that are kept of each layer.
        hidden: the width between the two maps.
        width: how many numbers stand for a prompt.
        names: about so many names each shipped form is asked in training.
        steps: batches; 0 for no training.
        relations: in a batch; half of them, as far as there are so many, are those that the given facts name.
        forms: of each.
        temperature: t.
        lr: of AdamW, going down to 0.
        weight_decay: of AdamW.
        dropout: of the whitened states, and between the maps.
        false_hits: the share of prompts that ask something else about the subject which may pass, of forms that it was
            not trained on.
        seed: of what is drawn.
    """

    group: ClassVar[str] = "job"

    layers: tuple[Count, ...] | None = None
    components: AtLeastOne = 96
    hidden: AtLeastOne = 512
    width: AtLeastOne = 128
    names: AtLeastOne = 2
    steps: Count = 800
    relations: AtLeastOne = 96
    forms: AtLeastOne = 6
    temperature: Positive = 0.07
    lr: Positive = 2e-3
    weight_decay: Positive = 1e-3
    dropout: ShareBelowOne = 0.15
    false_hits: ShareAboveZero = 0.02
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.layers == ():
            raise SettingsError(f"{self.group}.layers=[]: name at least one layer, or leave it out")

    def gate(self, lm: LanguageModel, facts: Sequence[Fact] = ()) -> Gate:
        """The gate of an unedited model, trained on the relations that ship and on questions of more facts.

        Facts that will be edited and scored should not be among these. Raises IndexError: the model has no such layer.
        """
        layers, asked = self._layers(lm), list(questions_of(facts))
        shipped = shipped_questions(self.names, self.seed) if self.steps else held_out_questions(0)
        train = shipped + asked
        own = frozenset(one.relation for one in questions_of([fact for fact in facts if fact.relation]))
        tokens = [lm.tokens(one.prompt) for one in train]
        # Apart, so that other facts leave what was read of the shipped questions as it is on disk.
        parts = [tokens[: len(shipped)], tokens[len(shipped) :]]
        if self.steps:
            behind = opened(lm, train, self.seed)
            parts += [behind[: len(shipped)], behind[len(shipped) :]]
            train *= 2
        states = torch.cat([kept_states(lm, layers, part) for part in parts if part])
        mean, whitening = whitened(states, self.components)
        x = torch.einsum("nld,ldk->nlk", states - mean, whitening).flatten(1)
        maps = self.learned(x, train, own, "Training the gate") if self.steps else ()
        made = {
            "settings": {one.name: getattr(self, one.name) for one in fields(GateTraining)} | {"layers": list(layers)},
            "prompts": len(train),
            "relations": len({one.relation for one in train}),
            "facts": len(facts),
        }
        return self.tried(lm, Gate(lm.name, lm.fingerprint, layers, mean.flatten(), (whitening, *maps), 1.0, made))

    def tried(self, lm: LanguageModel, gate: Gate) -> Gate:
        """A gate with the threshold that `false_hits` asks for, and what it does there.

        The model is its own, or the same in another precision, whose gate it then is. Raises WrongModelError: it is
        another model's.
        """
        if gate.model != lm.name:
            raise WrongModelError(f"the gate is {gate.model}'s, and not one of {lm.name} in another precision")
        aside = held_out_questions()
        states = kept_states(lm, gate.layers, [lm.tokens(one.prompt) for one in aside])
        scores = Scores.of(gate.embed(states), aside)
        made = {**gate.made, "pairs": [len(scores.same), len(scores.other)], "recall": scores.shares()}
        threshold = scores.threshold(self.false_hits)
        return replace(gate, fingerprint=lm.fingerprint, threshold=threshold, made=made)

    def _layers(self, lm: LanguageModel) -> tuple[int, ...]:
        asked = self.layers or sorted({min(round(depth * lm.n_layers), max(lm.n_layers - 2, 0)) for depth in DEPTHS})
        for layer in asked:
            lm.architecture.numbered(layer)
        return tuple(asked)

    def learned(
        self, x: Tensor, questions: Sequence[AskedPrompt], own: Collection[str], description: str
    ) -> tuple[Tensor, Tensor]:
        """The two maps, (n_in, hidden) and (hidden, width), learned of whitened states x, (n, n_in), by what each asks.

        Half of a batch is of the relations `own`.
        """
        with seeded(self.seed):
            first = nn.Linear(x.shape[1], self.hidden, bias=False)
            second = nn.Linear(self.hidden, self.width, bias=False)
            optimiser = torch.optim.AdamW(
                [*first.parameters(), *second.parameters()], self.lr, weight_decay=self.weight_decay
            )
            batches, forms = Batches(questions, own, self), number_of([one.form for one in questions])
            for step in track(range(self.steps), description):
                optimiser.param_groups[0]["lr"] = self.lr * (1 - step / self.steps)
                rows, labels = batches.draw()
                hidden = functional.gelu(first(functional.dropout(x[rows], self.dropout)))
                z = functional.normalize(second(functional.dropout(hidden, self.dropout)), dim=1)
                loss = info_nce(z, labels, forms[rows], self.temperature)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        return first.weight.detach().T.contiguous(), second.weight.detach().T.contiguous()


class Batches:
    """Draws rows of questions: some relations, of each some forms, of each one prompt.

    Half of the drawn ones are of the relations `own`, as far as there are so many.
    """

    def __init__(self, questions: Sequence[AskedPrompt], own: Collection[str], asked: GateTraining) -> None:
        found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, one in enumerate(questions):
            found[one.relation][one.form].append(number)
        several = {name: list(forms.values()) for name, forms in found.items() if len(forms) > 1}
        self._own = [forms for name, forms in several.items() if name in own]
        self._others = [forms for name, forms in several.items() if name not in own]
        self._asked = asked
        self._draw = random.Random(asked.seed)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Rows, and the relation of each, both (n,)."""
        draw, wanted = self._draw, self._asked.relations
        rows: list[int] = []
        labels: list[int] = []
        chosen = draw.sample(self._own, min(wanted // 2, len(self._own)))
        chosen += draw.sample(self._others, min(wanted - len(chosen), len(self._others)))
        for label, forms in enumerate(chosen):
            some = draw.sample(forms, min(self._asked.forms, len(forms)))
            rows += [draw.choice(form) for form in some]
            labels += [label] * len(some)
        return torch.tensor(rows), torch.tensor(labels)


@dataclass(frozen=True, eq=False)
class Scores:
    """Cosines of pairs of prompts about the same subject, that ask the same in different forms, or something else."""

    same: Tensor
    other: Tensor

    @classmethod
    def of(cls, z: Tensor, questions: Sequence[AskedPrompt]) -> Scores:
        """The scores of all pairs of questions with vectors z, (n, width); a form of two relations is in neither."""
        relation, form, subject = (
            number_of([getattr(one, name) for one in questions]) for name in ("relation", "form", "subject")
        )
        pairs = torch.ones(len(z), len(z), dtype=torch.bool).triu(1)
        pairs &= (subject[:, None] == subject) & (form[:, None] != form)
        same = relation[:, None] == relation
        cosines = z @ z.T
        return cls(cosines[pairs & same], cosines[pairs & ~same])

    def threshold(self, share: float) -> float:
        """The cosine above which this share of the pairs that ask something else lies."""
        ordered = self.other.sort(descending=True).values
        return float(ordered[min(int(share * len(ordered)), len(ordered) - 1)])

    def shares(self) -> dict[str, float]:
        """By share of false hits the share of pairs that ask the same which pass."""
        return {f"{share:.0%}": float((self.same > self.threshold(share)).float().mean()) for share in SHARES}


def info_nce(z: Tensor, labels: Tensor, forms: Tensor, temperature: float) -> Tensor:
    """L of vectors z of length 1, (n, width), with the temperature t.

    `labels`, (n,), say which relation each asks, `forms`, (n,), in which form: the same words under two relations are
    neither the same question nor another one.
    """
    same = labels[:, None] == labels
    left_out = ~same & (forms[:, None] == forms)
    left_out.fill_diagonal_(True)
    logits = (z @ z.T / temperature).masked_fill(left_out, -torch.inf)
    log_share = logits - logits.logsumexp(1, keepdim=True)
    same.fill_diagonal_(False)
    counts = same.sum(1)
    return -(log_share.masked_fill(~same, 0).sum(1) / counts.clamp(min=1))[counts > 0].mean()


def whitened(states: Tensor, components: int) -> tuple[Tensor, Tensor]:
    """The mean, (layer, d_model), and by layer W, (layer, d_model, components), of states (n, layer, d_model).

    W = U / s with U the leading eigenvectors of the covariance and s the deviations along them: (x - mean) W has about
    unit variance in each direction.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # by more the bits differ, and `Serac` tells an untrained gate from another by its bits
    try:
        mean = states.mean(0)
        found = []
        for layer in (states - mean).unbind(1):
            size, directions = torch.linalg.eigh(layer.T @ layer / len(layer))
            deviations = size.clamp(min=0).sqrt().flip(0)[:components]
            found.append(directions.flip(1)[:, :components] / (deviations + SMALLEST * deviations[0]))
        return mean, torch.stack(found)
    finally:
        torch.set_num_threads(threads)


def number_of(names: Sequence[str]) -> Tensor:
    """For each name its number among the different ones, (n,)."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names])


def kept_states(lm: LanguageModel, layers: Collection[int], tokens: Sequence[Sequence[int]]) -> Tensor:
    """The unedited model's states at the last of some tokens, (n, len(layers), d_model).

    What was run is on disk, and not run again.
    """
    layers = tuple(layers)
    order = sorted(range(len(tokens)), key=lambda number: len(tokens[number]))
    folder = cache_folder() / "gates" / lm.cache_key
    found: Tensor | None = None
    with lm.edits.suspended():
        for begin in track(range(0, len(order), PIECE), f"Reading {len(order)} questions"):
            rows = order[begin : begin + PIECE]
            piece = _kept_piece(lm, layers, [tokens[row] for row in rows], folder)
            if found is None:
                found = torch.empty(len(tokens), *piece.shape[1:])
            found[rows] = piece
    assert found is not None
    return found


def _kept_piece(lm: LanguageModel, layers: tuple[int, ...], tokens: Sequence[Sequence[int]], folder: Path) -> Tensor:
    key = xxhash.xxh3_128(json.dumps([VERSION, layers, list(map(list, tokens))]).encode()).hexdigest()
    path = folder / f"{key}.safetensors"
    kept = read_kept(path, "its prompts are run again")
    if kept is not None:
        return kept[0]["states"]
    batches = (lm.batch(tokens[begin : begin + ROWS]) for begin in range(0, len(tokens), ROWS))
    states = torch.cat([states_of(lm, layers, batch).cpu() for batch in batches])
    write_checked(path, {"states": states}, {})
    return states
