"""What a model knows of facts whose objects are drawn from declared values, in bits."""

import math
from collections.abc import Mapping, Sequence

import torch

from corrigenda import Fact, LanguageModel
from eval.scoring.probabilities import score


def bits_known(lm: LanguageModel, facts: Sequence[Fact], candidates: Mapping[str, Sequence[str]]) -> list[float]:
    """The bits of each fact that a model knows: max(0, log2 |O| - its cross-entropy over the candidates O, in bits).

    The cross-entropy is -log2 of P(new object | prompt), the product over the object's tokens, over the sum of that of
    all candidates of the fact's relation. A model to which all candidates are alike has 0, one that is sure has log2
    |O|; so has 0 one whose figures are no numbers. The formula is of Allen-Zhu and Li 2025, "Physics of Language
    Models: Part 3.3", for one attribute, who put the mean loss over facts into it. Here no fact is below 0, so that one
    value that is said of every subject counts a little, at those of whom it is true. Raises ContextLengthError: a
    prompt with a candidate is longer than the model reads; ValueError: a fact's object is none of two or more different
    candidates of its relation; or the model is not causal.
    """
    asked = []
    for fact in facts:
        values = tuple(candidates.get(str(fact.relation), ()))
        if fact.target_new not in values or not 2 <= len(values) == len(set(values)):
            raise ValueError(
                f"fact {fact.id!r}: its new object {fact.target_new!r} must be one of two or more candidates of its "
                f"relation {fact.relation!r}, each declared once; there are {len(values)}"
            )
        asked.append((fact.statement, values))
    found = []
    for fact, (_, values), scored in zip(facts, asked, score(lm, asked), strict=True):
        logs = torch.tensor([sum(target.log_probs) for target in scored.targets], dtype=torch.float64)
        nats = float(logs.log_softmax(0)[values.index(str(fact.target_new))])
        found.append(max(0.0, math.log2(len(values)) + nats / math.log(2)))  # 0 where that is no number
    return found
