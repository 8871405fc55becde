"""The backward lens: what a gradient writes into the values of every layer, and where it would write it, in words.

Katz, Belinkov, Geva and Wolf 2024, "Backward Lens: Projecting Language Model Gradients into the Vocabulary Space".
The gradient of a loss with respect to the values V of a layer is a sum of outer products, one a position p:

    dL/dV = sum over p of m_p^T delta_p        (section 4)

m_p are the coefficients there, (d_ffn,), and delta_p is the gradient at the FFN's output, (d_model,). This holds for
plain and for gated FFNs alike, since V's input are the coefficients in both. A step of gradient descent adds -delta_p
to the values in proportion to the coefficients: it *shifts* what the memory says to a prompt towards the target's
embedding. What of the prompt decides where it goes is what the position held: the paper's *imprint* is the FFN's input,
which the gradient of the keys adds to them; the coefficients are read by what they make of the values, m_p V + b2.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.errors import SettingsError
from corrigenda.facts import as_fact
from corrigenda.forward.gradients import output_gradients
from corrigenda.models.alone import one_thread
from corrigenda.models.sites import state_entering
from corrigenda.prompts import TokenBatch, first_word
from corrigenda.settings.checked import AtLeastOne, checked
from corrigenda.text.display import quoted
from locate.lens.parts import require_memories
from locate.lens.words import rank_of, read_static, token_texts, top
from locate.question import ask, require_numbers
from locate.saving import SavedResult

Texts = tuple[tuple[tuple[str, ...], ...], ...]
"""The top tokens of something at each layer and position."""


@dataclass(frozen=True, eq=False)
class BackwardLensResult(SavedResult, file="backward"):
    """The gradient of one fact's loss with respect to the values of some layers, as a sum of outer products.

    Attributes:
        fact: the fact.
        prompt: its prompt, as the model read it.
        tokens: the texts of the tokens that were run: the prompt's and all of the target's but the last.
        target: the target whose loss it is.
        target_ids: its tokens.
        predicting: the positions at which these are predicted.
        layers: which layers.
        imprint: by layer and position, the top tokens of the FFN's input.
        output: of the FFN's output, which is what the coefficients make of the values.
        shift: of -delta, which a step of gradient descent adds to the values.
        ranks: the rank of the target's first token (that is no space alone) in -delta, 0 for the top one,
            (layer, position).
        factors: "coefficients" m, (layer, position, d_ffn), and "gradients" delta, (layer, position, d_model), whose
            outer products sum to the gradient; "inputs" and "outputs" of the FFN, (layer, position, d_model). In
            float32; of a float64 model in float64.
    """

    fact: Fact
    prompt: str
    tokens: tuple[str, ...]
    target: str
    target_ids: tuple[int, ...]
    predicting: tuple[int, ...]
    layers: tuple[int, ...]
    imprint: Texts
    output: Texts
    shift: Texts
    ranks: Tensor
    factors: dict[str, Tensor]

    @property
    def norms(self) -> Tensor:
        """|m_p| |delta_p|, the norm of each outer product, (layer, position)."""
        return self.factors["coefficients"].norm(dim=-1) * self.factors["gradients"].norm(dim=-1)

    def gradient(self, layer: int) -> Tensor:
        """The whole sum, dL/dV of a layer, (d_ffn, d_model).

        Raises:
            ValueError: the lens was not of that layer.
        """
        if layer not in self.layers:
            raise ValueError(f"layer {layer} is not among those that were looked at: {list(self.layers)}")
        number = self.layers.index(layer)
        return self.factors["coefficients"][number].T @ self.factors["gradients"][number]

    def summary(self) -> dict[str, Any]:
        """The figures in plain values: by layer the position that counts most, and what is shifted there."""
        rows = []
        for number, layer in enumerate(self.layers):
            position = int(self.norms[number].argmax())
            rows.append(
                {
                    "layer": layer,
                    "token": self.tokens[position],
                    "share": float(self.norms[number, position] / self.norms[number].sum()),
                    "shift": list(self.shift[number][position]),
                    "target_rank": int(self.ranks[number, position]),
                }
            )
        return {"prompt": self.prompt, "target": self.target, "layers": rows}

    def table(self) -> Table:
        """A table for a terminal: for each layer the position with the largest outer product, in words."""
        table = Table(
            *("layer", "at", "share of norms", "imprint", "output", "shift", "rank of the target"),
            title=f"gradient of -log P({escape(self.target)})",
        )
        for number, layer in enumerate(self.layers):
            position = int(self.norms[number].argmax())
            share = float(self.norms[number, position] / self.norms[number].sum())
            named = [
                ", ".join(map(repr, rows[number][position][:3])) for rows in (self.imprint, self.output, self.shift)
            ]
            cells = [str(layer), repr(self.tokens[position]), f"{100 * share:.0f} %", *named]
            table.add_row(*map(escape, cells), str(int(self.ranks[number, position])))
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the outer products' norms, tokens down and layers across, each with the top token of its shift."""
        from locate.lens.pictures_of_edits import gradient_grid

        gradient_grid(path, self.norms, self.tokens, self.layers, self.shift, quoted(self.target, 24))


@dataclass(frozen=True)
@checked
class BackwardLens:
    """The settings of the backward lens.

    Attributes:
        layers: which layers; None for all. Negative numbers count from the end.
        words: how many tokens are named where something is read.

    Raises:
        SettingsError: no layer is named.
    """

    result: ClassVar = BackwardLensResult
    layers: tuple[int, ...] | None = None
    words: AtLeastOne = 5

    def __post_init__(self) -> None:
        if self.layers == ():
            raise SettingsError("BackwardLens: layers=() names no layer; name one or more, or None for all")

    def check(self, lm: LanguageModel) -> None:
        """Says whether the settings fit a model.

        Raises:
            IndexError: the model has no such layer.
        """
        self._layers(lm)

    @one_thread
    def find(self, lm: LanguageModel, fact: Fact, answer: str | None = None) -> BackwardLensResult:
        """Takes the gradient of one fact's loss apart.

        The loss is -log P of a target, the mean over its tokens, at the fact's statement.

        Args:
            lm: a causal model, with whatever edits are applied.
            fact: its statement is the prompt.
            answer: the target; by default the fact's new object, else the true one. As in `locate.question.ask`.

        Raises:
            UnsupportedModelError: the model's vectors cannot be read in words, or a layer is a mixture of experts.
            ValueError: the model gives no numbers.
        """
        as_fact("the backward lens", fact)
        lm.architecture.require_one_text("the backward lens")
        target = answer or fact.target_new or fact.target_true
        assert target is not None
        read_static(lm, torch.zeros(1, lm.memory(0).d_model))  # refuses a model that cannot be read, before the work
        layers = self._layers(lm)
        require_memories(lm, layers)
        question = ask(lm, fact, target)
        batch = question.batch(lm)
        wanted = torch.tensor(question.answer_ids, device=batch.lengths.device)
        places = list(question.predicting)

        def loss(logits: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(logits[places].double(), wanted.to(logits.device))

        parts = _factors(lm, batch, layers, loss)
        require_numbers(lm, question.prompt, parts.values())
        token = question.answer_ids[first_word(lm.tokenizer, question.answer_ids)]
        ranks: list[Tensor] = []
        texts: dict[str, list[tuple[tuple[str, ...], ...]]] = {"imprint": [], "output": [], "shift": []}
        for number in range(len(layers)):
            shift = read_static(lm, -parts["gradients"][number])
            ranks.append(rank_of(shift, token).cpu())
            texts["shift"].append(_named(lm, shift, self.words))
            texts["imprint"].append(_named(lm, read_static(lm, parts["inputs"][number]), self.words))
            texts["output"].append(_named(lm, read_static(lm, parts["outputs"][number]), self.words))
        return BackwardLensResult(
            fact=fact,
            prompt=question.prompt,
            tokens=token_texts(lm, question.ids),
            target=question.answer,
            target_ids=question.answer_ids,
            predicting=question.predicting,
            layers=tuple(layers),
            **{name: tuple(rows) for name, rows in texts.items()},
            ranks=torch.stack(ranks),
            factors=parts,
        )

    def _layers(self, lm: LanguageModel) -> list[int]:
        if self.layers is None:
            return list(range(lm.n_layers))
        return [lm.memory(layer).layer for layer in self.layers]


def _factors(
    lm: LanguageModel, batch: TokenBatch, layers: Sequence[int], loss: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """What enters the FFNs, their coefficients and outputs, and the loss's gradients at these, by layer and token."""
    inputs: dict[int, Tensor] = {}

    def keep(layer: int) -> Callable[[Tensor], None]:
        def note(state: Tensor) -> None:
            inputs[layer] = state.detach().reshape(batch.input_ids.shape[1], -1).cpu()  # OPT flattens its batch

        return note

    at = torch.ones_like(batch.input_ids, dtype=torch.bool)
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(state_entering(lm.architecture.keys(layer), keep(layer)))
        found = output_gradients(lm, batch, at, layers, loss)
    return {
        "inputs": torch.stack([inputs[layer].to(found[layer].outputs) for layer in layers]),
        "coefficients": torch.stack([found[layer].coefficients for layer in layers]),
        "outputs": torch.stack([found[layer].outputs for layer in layers]),
        "gradients": torch.stack([found[layer].gradients for layer in layers]),
    }


@one_thread
def backward_lens(lm: LanguageModel, fact: Fact, answer: str | None = None, **settings: Any) -> BackwardLensResult:
    """Takes one fact's gradient apart: `BackwardLens(**settings).find(lm, fact, answer)`."""
    return BackwardLens(**settings).find(lm, fact, answer)


def _named(lm: LanguageModel, scores: Tensor, k: int) -> tuple[tuple[str, ...], ...]:
    """The texts of the top tokens at each position, from scores (position, vocabulary)."""
    return tuple(top(lm, row, k).texts for row in scores)
