"""What the lens on an edit gives: `EditLensResult`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda.text.joints import joined
from locate.lens.words import Words
from locate.saving import SavedResult


@dataclass(frozen=True)
class NearNeuron:
    """One of the neurons that a component of an update answers to.

    Attributes:
        neuron: its number in its layer.
        weight: the entry of the component's left side, whose square is the neuron's share of it. Its sign is the
            component's, which is arbitrary, times that of the coefficient it wants.
        key: the top tokens of its key; in a gated FFN of its row of the gate.
        value: the top tokens of its value, of a positive coefficient.
        triggers: what triggers it, the strongest first; empty where that was not looked up.
    """

    neuron: int
    weight: float
    key: tuple[str, ...]
    value: tuple[str, ...]
    triggers: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Component:
    """One singular component of an update, s a^T b.

    Attributes:
        strength: s.
        share: s^2 as a share of the update's squared norm.
        neurons: those with the largest entries of a.
        promoted: the tokens that b promotes most.
        eliminated: those that it promotes least. The signs of a and b together are arbitrary: where coefficients meet
            a negatively, the two change places.
        left: a, (d_ffn,), of length one, float32.
        right: b, (d_model,), of length one, float32.
    """

    strength: float
    share: float
    neurons: tuple[NearNeuron, ...]
    promoted: Words
    eliminated: Words
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class LayerReading:
    """What an edit writes into one layer.

    Attributes:
        layer: which.
        memory: which side memory, entry of a codebook or expert; 0 for what has only one.
        norm: |D|.
        relative_norm: |D| / |V|.
        components: the largest first.
    """

    layer: int
    memory: int
    norm: float
    relative_norm: float
    components: tuple[Component, ...]


@dataclass(frozen=True)
class FactReading:
    """What an edit writes at the prompt of one of its facts.

    Attributes:
        id: the fact's.
        statement: its prompt.
        object: its new object (of an erasure, the old one).
        token: the object's first token (that is no space alone), whose ranks follow; 0 is the top one of the
            vocabulary.
        weights_ranks: by layer reading, its best rank in the right sides of the components, in either sign: what can be
            read off the weights alone. Chance is the best of twice as many draws as there are components.
        written_ranks: by layer reading, its rank in m D at the position of the prompt where that is largest, with m of
            the unedited model.
        written: by layer reading, the top tokens there.
    """

    id: str
    statement: str
    object: str
    token: str
    weights_ranks: tuple[int, ...]
    written_ranks: tuple[int, ...]
    written: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class EditLensResult(SavedResult, file="edit_lens"):
    """An edit in words, layer by layer.

    Attributes:
        model: the model's name.
        editor: the editor's.
        kind: of the edit.
        vocabulary: how many tokens the ranks are out of.
        layers: what it writes into each layer; several of one layer for several side memories or entries.
        facts: what it writes at its facts.
    """

    model: str
    editor: str
    kind: str
    vocabulary: int
    layers: tuple[LayerReading, ...]
    facts: tuple[FactReading, ...]

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        n = len(self.facts)
        found: dict[str, Any] = {
            "model": self.model,
            "editor": self.editor,
            "kind": self.kind,
            "vocabulary": self.vocabulary,
            "layers": [
                {
                    "layer": each.layer,
                    "memory": each.memory,
                    "norm": each.norm,
                    "relative_norm": each.relative_norm,
                    "components": [
                        {
                            "share": component.share,
                            "neurons": [near.neuron for near in component.neurons],
                            "promoted": list(component.promoted.texts),
                            "eliminated": list(component.eliminated.texts),
                        }
                        for component in each.components
                    ],
                }
                for each in self.layers
            ],
            "n_facts": n,
        }
        for name in ("weights_ranks", "written_ranks") if n else ():
            ranks = torch.tensor([min(getattr(fact, name)) for fact in self.facts])
            found[name] = {
                "median": float(ranks.double().median()),
                "top_1": float((ranks == 0).double().mean()),
                "top_10": float((ranks < 10).double().mean()),
            }
        return found

    def table(self) -> Table:
        """A table for a terminal: for each component what it answers to, and what it says."""
        table = Table(
            *("layer", "share", "answers to neurons", "whose values say", "says", "or, of the other sign"),
            title=f"{self.kind} edit by {escape(self.editor)}",
        )
        for each in self.layers:
            for component in each.components:
                table.add_row(
                    f"{each.layer}",
                    f"{100 * component.share:.0f} %",
                    ", ".join(f"{near.neuron} ({near.weight:+.2f})" for near in component.neurons[:3]),
                    escape(", ".join(repr(near.value[0]) for near in component.neurons[:3] if near.value)),
                    *(
                        escape(", ".join(map(repr, each.texts[:5])))
                        for each in (component.promoted, component.eliminated)
                    ),
                )
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the ranks of the facts' objects in what is written at their prompts, as PNG, PDF or SVG.

        Raises:
            ValueError: the edit names no fact with an object; or the suffix is none of these.
        """
        from locate.lens.pictures_of_edits import object_ranks

        if not self.facts:
            raise ValueError(f"the edit by {self.editor} names no fact with an object, so there are no ranks to draw")
        ranks = {joined(fact.statement, fact.object): fact.written_ranks for fact in self.facts}
        title = f"The object in what {self.editor} writes at its prompt"
        object_ranks(path, [each.layer for each in self.layers], ranks, self.vocabulary, title)
