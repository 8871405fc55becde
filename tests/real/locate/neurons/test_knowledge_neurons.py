"""Attributions against plain autograd on the whole model, completeness, and what is made of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from locate.neurons.knowledge_neurons import knowledge_neurons


def tokens(lm: LanguageModel, prompt: str, answer: str) -> tuple[list[int], list[int], list[int]]:
    """The row that is run, the positions that predict the answer, and the answer's tokens."""
    ids, wanted = (lm.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer))
    n = len(wanted)
    if lm.architecture.family.causal:
        return ids + wanted[:-1], list(range(len(ids) - 1, len(ids) - 1 + n)), wanted
    return ids + [lm.tokenizer.mask_token_id] * n, list(range(len(ids), len(ids) + n)), wanted


def probability(
    lm: LanguageModel, layer: int, row: tuple[list[int], list[int], list[int]], coefficients: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """P(answer), and the coefficients (position, d_ffn) at the predicting positions, or those put in their place."""
    ids, at, wanted = row
    seen: list[Tensor] = []

    def hook(_module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        flat = args[0].reshape(-1, args[0].shape[-1]).clone()  # one row; OPT has no batch dimension here
        seen.append(flat[at].detach())
        if coefficients is not None:
            flat[at] = coefficients
        return (flat.view_as(args[0]),)

    handle = lm.architecture.values(layer).register_forward_pre_hook(hook)
    logits = lm.model(input_ids=torch.tensor([ids])).logits[0, at]
    handle.remove()
    return logits.log_softmax(-1).gather(1, torch.tensor(wanted)[:, None]).sum().exp(), seen[0]


def test_completeness_real(smollm2: LanguageModel) -> None:
    fact = Fact("The Eiffel Tower", "{} is located in the city of", "Rome", "Paris")
    found = knowledge_neurons(smollm2, fact, steps=100, layers=[0, 12, 29])
    row = tokens(smollm2, fact.statement, " Paris")
    for number, layer in enumerate(found.layers):
        with torch.no_grad():
            full, m = probability(smollm2, layer, row)
            baseline, _ = probability(smollm2, layer, row, torch.zeros_like(m))
        assert abs(float(full - baseline)) > 0.01
        assert float(found.by_layer()[number]) == pytest.approx(float(full - baseline), rel=0.01)
