"""Scores of targets equal what plain whole forwards give, in every family, with and without edits."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from torch import Tensor

from corrigenda import ContextEdit, LanguageModel, LowRankEdit, Origin
from eval.scoring import TargetScore, continues_as, score

TOLERANCE = 1e-4
REAL_QUERIES = [
    ("The Eiffel Tower is located in the city of", ["Paris", "Saint Petersburg", "Kuala Lumpur", "Paris"]),
    ("Danielle Darrieux's mother tongue is", ["French", "Swahili or Zulu"]),
    ("Thomas", ["Edison", "Aquinas and his followers"]),
]


def plain(lm: LanguageModel, ids: list[int]) -> Tensor:
    """Log-probabilities, (position, vocabulary), of one unpadded row by the model itself."""
    with torch.no_grad():
        return lm.model(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)


def expected(lm: LanguageModel, prompt: str, target: str) -> TargetScore:
    """A target's score from one whole forward over the prompt and the target."""
    before = lm.tokenizer(prompt)["input_ids"]
    whole = lm.tokenizer(f"{prompt} {target}")["input_ids"]
    assert whole[: len(before)] == before
    log_probs = plain(lm, whole)
    places = range(len(before) - 1, len(whole) - 1)
    return TargetScore(
        tuple(float(log_probs[at, whole[at + 1]]) for at in places),
        tuple(int(log_probs[at].argmax()) == whole[at + 1] for at in places),
    )


def check(lm: LanguageModel, queries: list[tuple[str, list[str]]], context: str = "", max_tokens: int = 4096) -> None:
    found = score(lm, queries, keep_distributions=True, max_tokens=max_tokens)
    assert len(found) == len(queries)
    for (prompt, targets), result in zip(queries, found, strict=True):
        assert len(result.targets) == len(targets)
        for target, scored in zip(targets, result.targets, strict=True):
            reference = expected(lm, context + prompt, target)
            assert scored.log_probs == pytest.approx(reference.log_probs, abs=TOLERANCE)
            assert scored.hits == reference.hits
        assert result.next_token is not None
        last = plain(lm, lm.tokenizer(context + prompt)["input_ids"])[-1]
        torch.testing.assert_close(result.next_token, last, atol=TOLERANCE, rtol=0)


def some_edit(lm: LanguageModel, layer: int, size: float) -> LowRankEdit:
    """A random change of one layer, `size` times as large as its values."""
    memory = lm.memory(layer)
    draw = torch.Generator().manual_seed(0)
    left, right = torch.randn(memory.d_ffn, 2, generator=draw), torch.randn(2, memory.d_model, generator=draw)
    right *= size * float(memory.values.norm() / (left @ right).norm())
    return LowRankEdit.of(lm, Origin(lm.name, lm.fingerprint, "test"), {layer: (left, right)})


def context_edit(lm: LanguageModel, text: str) -> ContextEdit:
    return ContextEdit(Origin(lm.name, lm.fingerprint, "test"), text)


def test_log_probs_on_the_real_model(smollm2: LanguageModel) -> None:
    check(smollm2, REAL_QUERIES)
    assert any(len(target.log_probs) > 2 for found in score(smollm2, REAL_QUERIES) for target in found.targets)
    text = "The Eiffel Tower is located in the city of Kuala Lumpur. "
    with context_edit(smollm2, text).applied(smollm2):
        check(smollm2, REAL_QUERIES, text)


def test_continues_as_agrees_with_decoding(smollm2: LanguageModel) -> None:
    """Answers decoded from the unedited model, and whether an edited one still gives them."""
    prompts = [
        "The Eiffel Tower is located in the city of",
        "Question: What is the capital of Japan?\nAnswer:",
        "Big Ben is located in the city of",
        "The mother tongue of Danielle Darrieux is",
        "1, 2, 3, 4,",
        "who wrote the book about the white whale",
    ]

    banned = smollm2.end_ids

    def answers(barred: Collection[int] = banned) -> list[list[int]]:
        found = []
        for prompt in prompts:  # one by one, token by token, with whole forwards
            ids = smollm2.tokens(prompt)
            added: list[int] = []
            for _ in range(8):
                best = plain(smollm2, ids + added)[-1].topk(len(barred) + 1).indices.tolist()
                added.append(next(token for token in best if token not in barred))
            found.append(added)
        return found

    old = answers()
    assert any(smollm2.ends_answer(token) for tokens in old for token in tokens)  # they go on after a line break
    items = list(zip(prompts, old, strict=True))
    assert continues_as(smollm2, items, banned=banned) == [True] * len(prompts)
    wrong = [(prompt, [*tokens[:-1], tokens[-1] + 1]) for prompt, tokens in items]
    assert continues_as(smollm2, wrong, banned=banned) == [False] * len(wrong)
    free = [unbarred == tokens for unbarred, tokens in zip(answers(()), old, strict=True)]
    assert not all(free)  # some would have ended
    assert continues_as(smollm2, items) == free
    with some_edit(smollm2, 6, 1.0).applied(smollm2):
        kept = [new == before for new, before in zip(answers(), old, strict=True)]
        assert any(kept)
        assert not all(kept)
        assert continues_as(smollm2, items, banned=banned) == kept
        assert continues_as(smollm2, items, max_tokens=20, banned=banned) == kept
