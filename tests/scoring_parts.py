"""What the tests of scoring share."""

import pytest
import torch
from torch import Tensor

from corrigenda import ContextEdit, LanguageModel, Origin
from eval.scoring.probabilities import TargetScore, score

TOLERANCE = 1e-4
TINY_QUERIES = [
    ("the Eiffel tower is located in the city of", ["Paris", "Rome", "the capital of France"]),
    ("Danielle speaks", ["French", "English"]),
    ("the", ["city", "city of Paris", "city of London"]),
    ("Danielle speaks", ["German and Dutch", "French"]),
    ("Thomas plays the piano in the capital of Italy , in the north of", []),
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


def context_edit(lm: LanguageModel, text: str) -> ContextEdit:
    return ContextEdit(Origin(lm.name, lm.fingerprint, "test"), text)
