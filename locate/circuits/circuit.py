"""`Circuits`: the settings by which the circuit of a fact is looked for.

Yao et al. 2024, "Knowledge Circuits in Pretrained Transformers"; `locate.circuits.scores` and
`locate.circuits.faithfulness` name the sources of what is computed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.facts import as_fact
from corrigenda.models.alone import one_thread
from corrigenda.prompts import first_word
from corrigenda.settings.checked import AtLeastOne, Count, Seed, checked
from locate.circuits.counterfactual import Contrast, find_contrasts
from locate.circuits.faithfulness import SHARES, Control, metric_by_size, rankings
from locate.circuits.forward import graph_of
from locate.circuits.graph import Graph
from locate.circuits.results import Circuit, CircuitChange
from locate.circuits.scores import Method, ablation, attribute, exact, written
from locate.question import Answer, Question, ask, require_numbers

LEAST = 1e-6
"""By less the metric with all edges and with none must not differ."""


@dataclass(frozen=True)
@checked
class Circuits:
    """How the edges of a fact's circuit are scored, and by what circuits are measured.

    Attributes:
        method: "eap", "eap_ig" or "eap_ig_activations" (`locate.circuits.scores`).
        steps: of the two that integrate.
        ablation: what stands for an ablated source: what it writes in the counterfactual prompt; its mean, by position,
            over the prompts about other subjects of as many tokens; or zero.
        metric: the logit of the object less that of the counterfactual's object, or the object's log-probability.
        ranking: whether circuits keep the edges of the largest scores by amount, or with their sign.
        exact: of so many edges, the first of the ranking, the exact score is taken, too.
        edges: and of these, each named by its source and its reader (`Graph.sources`, `Graph.readers`).
        controls: what edges are ranked by for comparison (`locate.circuits.faithfulness`).
        seed: of the random ranking, and of the order of equals.

    Raises:
        SettingsError: a setting is not what it has to be.
    """

    result: ClassVar = Circuit
    method: Method = "eap_ig"
    steps: AtLeastOne = 5
    ablation: Literal["counterfactual", "mean", "zero"] = "counterfactual"
    metric: Literal["logit_difference", "log_probability"] = "logit_difference"
    ranking: Literal["absolute", "signed"] = "absolute"
    exact: Count = 10
    edges: tuple[tuple[str, str], ...] = ()
    controls: tuple[Control, ...] = ("random", "activation")
    seed: Seed = 0

    def check(self, lm: LanguageModel) -> None:
        """Says whether the settings fit a model.

        Raises:
            UnsupportedModelError: the model has no graph of edges (`locate.circuits.forward.graph_of`).
            ValueError: an edge that is named is none of it.
        """
        self._named(graph_of(lm, lm.tokens("The Eiffel Tower is located in the city of")))

    @one_thread
    def find(self, lm: LanguageModel, fact: Fact, answer: Answer = None, others: Iterable[Fact] | Fact = ()) -> Circuit:
        """Looks for the circuit of one fact.

        Args:
            lm: a causal model, with whatever edits are applied to its weights.
            fact: the fact; its statement is the prompt.
            answer: as in `locate.question.ask`.
            others: facts among which the counterfactual is looked for before those that ship; or the counterfactual.

        Raises:
            UnknownFactError: the model's answer is not the fact's true object.
            UnsupportedModelError: the model has no graph of edges.
            ValueError: there is no counterfactual, the given one does not fit, or the metric is the same with all edges
                and with none.
        """
        return self._found(lm, fact, answer, others, None)

    @one_thread
    def after(
        self, lm: LanguageModel, before: Circuit, answer: Answer, others: Iterable[Fact] | Fact = ()
    ) -> CircuitChange:
        """With an edit applied: the circuit of another answer, against the same counterfactual.

        Circuits are also made of the edges that were first before.

        Args:
            lm: the model, with the edit.
            before: the circuit without it.
            answer: as in `locate.question.ask`.
            others: with ablation="mean" the facts over whose prompts the mean is; as in `find`.

        Raises:
            ValueError: as `find` says.
        """
        return CircuitChange(before, self._found(lm, before.fact, answer, others, before))

    def _found(
        self, lm: LanguageModel, fact: Fact, answer: Answer, others: Iterable[Fact] | Fact, before: Circuit | None
    ) -> Circuit:
        question = ask(lm, as_fact("a circuit", fact), answer)
        contrasts = self._contrasts(lm, fact, question, others, before)
        if not contrasts and (self.ablation, self.metric) != ("zero", "log_probability"):
            begin, end = question.subject
            raise ValueError(
                f"there is no counterfactual of {question.prompt!r}: no fact of its relation with another object has a "
                f"subject of {end - begin} tokens; name one, or take ablation=zero with metric=log_probability"
            )
        place = first_word(lm.tokenizer, question.answer_ids)
        first = question.answer_ids[place]
        alone = Contrast(fact, "", question.ids[: question.n_prompt + place], (), first, first)
        contrast = contrasts[0] if contrasts else alone
        graph = graph_of(lm, list(contrast.ids))
        named = self._named(graph)
        task = ablation(lm, graph, contrast.ids, self._metric(contrast), self._ablated(lm, graph, contrasts))
        scores = attribute(task, self.method, self.steps)
        require_numbers(lm, question.prompt, [scores])
        orders = rankings(task, scores, self.ranking == "absolute", self.controls, self.seed)
        if before is not None:
            orders["before"] = before.order
        values, ends = metric_by_size(task, list(orders.values()))
        if abs(float(ends.diff())) < LEAST:
            raise ValueError(
                f"{self.metric} is {float(ends[1]):.6g} after {question.prompt!r} with all edges and with none: "
                "there is nothing to be faithful to; take another counterfactual or ablation"
            )
        checked = list(dict.fromkeys([*orders["score"][: self.exact].tolist(), *named]))
        return Circuit(
            fact=fact,
            prompt=question.prompt,
            other=contrast.fact if contrasts else None,
            counterfactual=contrast.prompt,
            objects=(lm.text([contrast.object]).strip(), lm.text([contrast.other_object]).strip()),
            method=self.method,
            steps=self.steps,
            metric=self.metric,
            ablation=self.ablation,
            ranking=self.ranking,
            graph=graph,
            scores=scores.float().cpu(),
            exact_edges=torch.tensor(checked, dtype=torch.long),
            exact=exact(task, checked).float().cpu(),
            shares=SHARES,
            by=tuple(orders),
            values=values.float(),
            ends=ends.float(),
        )

    def _contrasts(
        self, lm: LanguageModel, fact: Fact, question: Question, others: Iterable[Fact] | Fact, before: Circuit | None
    ) -> list[Contrast]:
        """The counterfactuals, that of the circuit before an edit first."""
        if before is None:
            return find_contrasts(lm, fact, question, others)
        if before.other is None:
            return []
        first = find_contrasts(lm, fact, question, before.other)
        if self.ablation != "mean":
            return first
        return first + [each for each in find_contrasts(lm, fact, question, others) if each.fact != before.other]

    def _named(self, graph: Graph) -> list[int]:
        return [graph.number(source, reader) for source, reader in self.edges]

    def _metric(self, contrast: Contrast) -> Callable[[Tensor], Tensor]:
        if self.metric == "log_probability":
            return lambda logits: logits.float().log_softmax(-1)[:, contrast.object]
        return lambda logits: logits[:, contrast.object].float() - logits[:, contrast.other_object].float()

    def _ablated(self, lm: LanguageModel, graph: Graph, contrasts: Sequence[Contrast]) -> Tensor:
        """What is put in the place of what each source writes, (source, position, d_model)."""
        if self.ablation == "zero":
            return torch.zeros(1, 1, 1, device=lm.device, dtype=lm.dtype)
        if self.ablation == "counterfactual":
            return written(lm, graph, contrasts[0].other_ids)
        alike = [each for each in contrasts if len(each.other_ids) == len(contrasts[0].ids)]
        if len(alike) < 2:
            raise ValueError(
                f"ablation=mean: there is one other subject of as many tokens for {contrasts[0].prompt!r}, and a mean "
                "is over two or more; name facts of more, or take ablation=counterfactual"
            )
        return torch.stack([written(lm, graph, each.other_ids) for each in alike]).mean(0)


@one_thread
def knowledge_circuit(
    lm: LanguageModel, fact: Fact, answer: Answer = None, others: Iterable[Fact] | Fact = (), **settings: Any
) -> Circuit:
    """The circuit of a fact: `Circuits(**settings).find(...)`."""
    return Circuits(**settings).find(lm, fact, answer, others)


@one_thread
def circuit_change(
    lm: LanguageModel, fact: Fact, edit: Edit, others: Iterable[Fact] | Fact = (), **settings: Any
) -> CircuitChange:
    """The circuits of a fact's true object before an edit, and of its new one with it.

    Both have one counterfactual. With the edit circuits are also made of the edges that were largest before.

    Args:
        lm: a causal model, without the edit.
        fact: what was edited; it has a true object, which the model says, and a new one.
        edit: changes weights alone.
        others: as in `Circuits.find`.
        settings: of `Circuits`.

    Raises:
        ValueError: the fact has not both objects; or as `Circuits.find` says.
    """
    if fact.target_true is None or fact.target_new is None:
        raise ValueError(f"circuit_change: the fact {fact.id!r} needs its true and its new object")
    locator, others = Circuits(**settings), others if isinstance(others, Fact) else list(others)
    before = locator.find(lm, fact, None, others)
    with edit.applied(lm):
        return locator.after(lm, before, fact.target_new, others)
