"""Knowledge neurons: the FFN coefficients that carry a model's answer.

Dai, Dong, Hao, Sui, Chang and Wei 2022, "Knowledge Neurons in Pretrained Transformers".
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.facts import as_fact
from corrigenda.models.alone import one_thread
from corrigenda.models.neurons import Neuron
from corrigenda.settings.checked import AtLeastOne, Count, check_value
from corrigenda.text.joints import joined
from locate.neurons.attribution import Method, Rule, attribute
from locate.neurons.plots import plot_layers
from locate.question import Answer, Question, ask, ask_prompt, require_numbers
from locate.saving import SavedResult


@dataclass(frozen=True, eq=False)
class KnowledgeNeuronsResult(SavedResult, file="neurons"):
    """What the coefficients of a model contribute to one answer after one prompt.

    Attributes:
        question: the prompt and the answer whose probability is attributed.
        layers: which layers were looked at.
        attributions: (layer, d_ffn), rows in the order of `layers`; see `locate.neurons.attribution`.
        activations: |m|, the mean over the positions that predict the answer, (layer, d_ffn).
        probability: of the answer (the product over its tokens), with nothing changed.
        method: how they were found.
        steps: the steps of the integral.
        rule: where the steps lie.
        model: the model's name.
    """

    question: Question
    layers: tuple[int, ...]
    attributions: Tensor
    activations: Tensor
    probability: float
    method: Method
    steps: int
    rule: Rule
    model: str

    @property
    def answer_in_prompt(self) -> bool:
        """Whether a token of the answer stands in the prompt already.

        The answer is attributed all the same, but what is found may then be what copies it.
        """
        return bool(set(self.question.answer_ids) & set(self.question.ids[: self.question.n_prompt]))

    @property
    def settings(self) -> dict[str, Any]:
        """What results have to share to be put together: the model, and how its neurons were found."""
        return {name: getattr(self, name) for name in ("model", "layers", "method", "steps", "rule")}

    def neurons(self, threshold: float = 0.2) -> tuple[Neuron, ...]:
        """The coarse set: the neurons with more than `threshold` times the largest attribution, the largest first.

        Empty where no attribution is positive: nothing then raises the answer's probability.

        Raises:
            ValueError: the threshold is not in [0, 1).
        """
        if not 0 <= threshold < 1:
            raise ValueError(f"the threshold is a share of the largest attribution in [0, 1), not {threshold}")
        largest = float(self.attributions.max())
        if not largest > 0:
            return ()
        rows, columns = (self.attributions > threshold * largest).nonzero(as_tuple=True)
        order = self.attributions[rows, columns].argsort(descending=True, stable=True)
        places = zip(rows[order].tolist(), columns[order].tolist(), strict=True)
        return tuple((self.layers[row], column) for row, column in places)

    def top(self, n: int) -> tuple[Neuron, ...]:
        """The n neurons with the largest attributions, the largest first."""
        n = check_value("top", "n", n, Count)
        flat = self.attributions.flatten().argsort(descending=True, stable=True)[:n].tolist()
        width = self.attributions.shape[1]
        return tuple((self.layers[place // width], place % width) for place in flat)

    def by_layer(self) -> Tensor:
        """The sum of each layer's attributions, (layer,), in the order of `layers`.

        For integrated gradients that is what the answer's probability loses when the layer's coefficients at the
        predicting positions are zero (completeness).
        """
        return self.attributions.sum(1)

    def counts(self, threshold: float = 0.2) -> tuple[int, ...]:
        """How many neurons of the coarse set each of `layers` has."""
        found = Counter(layer for layer, _ in self.neurons(threshold))
        return tuple(found[layer] for layer in self.layers)

    def summary(self) -> dict[str, Any]:
        """The main figures, as JSON values."""
        return {
            "prompt": self.question.prompt,
            "answer": self.question.answer,
            "answer_in_prompt": self.answer_in_prompt,
            "probability": self.probability,
            "method": self.method,
            "model": self.model,
            "coarse": len(self.neurons()),
            "top": [
                [layer, neuron, float(self.attributions[self.layers.index(layer), neuron])]
                for layer, neuron in self.top(10)
            ],
            "by_layer": dict(zip(map(str, self.layers), self.by_layer().tolist(), strict=True)),
        }

    def table(self, n: int = 10) -> Table:
        """A table for a terminal: the n neurons with the largest attributions."""
        title = f"P({escape(self.question.answer)}) = {self.probability:.3f} after {escape(self.question.prompt)}"
        table = Table("layer", "neuron", "attribution", "activation", title=title)
        for layer, neuron in self.top(n):
            place = self.layers.index(layer), neuron
            figures = (f"{float(each[place]):.4f}" for each in (self.attributions, self.activations))
            table.add_row(str(layer), str(neuron), *figures)
        return table

    def plot(self, path: str | Path, threshold: float = 0.2) -> None:
        """Draws the neurons of the coarse set and the sum of attributions by layer; PNG, PDF or SVG by suffix."""
        plot_layers(
            path,
            self.layers,
            self.counts(threshold),
            self.by_layer().tolist(),
            title=joined(self.question.prompt, self.question.answer),
            sums_label="sum of attributions",
        )


@one_thread
def knowledge_neurons(
    lm: LanguageModel,
    asked: Fact | str,
    answer: Answer = None,
    *,
    method: Method = "integrated_gradients",
    steps: int = 20,
    rule: Rule = "midpoint",
    layers: Sequence[int] | None = None,
    max_tokens: int = 192,
) -> KnowledgeNeuronsResult:
    """Attributes the probability of an answer to the coefficients at the positions that predict it.

    Args:
        lm: the model. A causal one answers after the prompt; a masked one at the prompt's mask (one is put at its end
            where it has none), and at as many masks as the answer has tokens.
        asked: a fact, whose statement is the prompt, or a prompt.
        answer: by default the fact's true object; "top" for the model's own most likely token; or tokens. All its
            tokens count, by the product of their probabilities. One that stands in the prompt is attributed like any
            other, and `answer_in_prompt` says so.
        method: "integrated_gradients", or the baselines "gradient" (times activation) and "activation".
        steps: how many points stand for the integral.
        rule: where they lie, in the middle of equal parts of [0, 1] or at their right ends.
        layers: which layers; None for all. Negative numbers count from the end.
        max_tokens: the most tokens that run at once.

    Raises:
        IndexError: the model has no such layer.
        ValueError: there is no answer, or it is empty; the prompt is longer than the context; `steps` is below 1; the
            method, the rule or the choice of layers is no such thing.
    """
    return attribute_all(
        lm, [(asked, answer)], method=method, steps=steps, rule=rule, layers=layers, max_tokens=max_tokens
    )[0]


def attribute_all(
    lm: LanguageModel,
    asked: Sequence[tuple[Fact | str, Answer]],
    *,
    method: Method = "integrated_gradients",
    steps: int = 20,
    rule: Rule = "midpoint",
    layers: Sequence[int] | None = None,
    max_tokens: int = 192,
    joint: str | None = None,
) -> list[KnowledgeNeuronsResult]:
    """`knowledge_neurons` for several prompts with their answers, side by side, which is faster.

    Between prompts that are no facts and their answers stands the `joint`, by default what follows from their ends.
    """
    for name, value, allowed in (
        ("method", method, Method),
        ("steps", steps, AtLeastOne),
        ("rule", rule, Rule),
        ("max_tokens", max_tokens, AtLeastOne),
    ):
        check_value("knowledge_neurons", name, value, allowed)
    chosen = select_layers(lm, layers)
    questions = [_question(lm, prompt, answer, joint) for prompt, answer in asked]
    found = attribute(lm, questions, chosen, method, steps, rule, max_tokens)
    for question, result in zip(questions, found, strict=True):
        require_numbers(lm, question.prompt, [result.attributions, result.activations])
    return [
        KnowledgeNeuronsResult(
            question=question,
            layers=chosen,
            attributions=result.attributions,
            activations=result.activations,
            probability=result.probability,
            method=method,
            steps=steps,
            rule=rule,
            model=lm.name,
        )
        for question, result in zip(questions, found, strict=True)
    ]


def _question(lm: LanguageModel, asked: Fact | str, answer: Answer, joint: str | None) -> Question:
    prompt = asked if isinstance(asked, str) else as_fact("knowledge_neurons", asked).statement
    if answer is None and isinstance(asked, Fact):
        answer = asked.target_true
    if answer is None:
        raise ValueError(
            f"{prompt!r} comes without a true object; give answer=..., or answer='top' for what the model says"
        )
    if not prompt.strip() or (isinstance(answer, str) and not answer.strip()):
        raise ValueError(f"the prompt {prompt!r} or the answer {answer!r} is empty")
    return ask_prompt(lm, asked, answer, joint) if isinstance(asked, str) else ask(lm, asked, answer)


def select_layers(lm: LanguageModel, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The layers that are meant, ascending; all of them for None."""
    layers = check_value("knowledge_neurons", "layers", layers, tuple[int, ...] | None)
    chosen = tuple(sorted({lm.memory(layer).layer for layer in (range(lm.n_layers) if layers is None else layers)}))
    if not chosen:
        raise ValueError("no layer to look at; give layers, or None for all")
    widths = {lm.memory(layer).d_ffn for layer in chosen}
    if len(widths) > 1:
        raise ValueError(
            f"the layers of {lm.name} have {', '.join(map(str, sorted(widths)))} neurons; give layers of one width"
        )
    return chosen


def layers_by_attribution(results: Sequence[KnowledgeNeuronsResult], n: int = 1) -> tuple[int, ...]:
    """The n layers with the largest sums of attributions, the largest first; the mean over several results.

    Raises:
        ValueError: there is no result, they looked at different layers, or `n` is not between 1 and their number.
    """
    if not results:
        raise ValueError("no result to choose layers by")
    layers = results[0].layers
    if any(result.layers != layers for result in results):
        raise ValueError("the results looked at different layers")
    if not 1 <= n <= len(layers):
        raise ValueError(f"n must be between 1 and the {len(layers)} layers looked at, not {n}")
    mean = torch.stack([result.by_layer() for result in results]).mean(0)
    return tuple(layers[place] for place in mean.argsort(descending=True, stable=True)[:n].tolist())
