"""The commands of docs/reports are scripts: their folder is on the path, as it is when one is started."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from corrigenda import Fact, LanguageModel

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "reports"))


@pytest.fixture
def known() -> Callable[[LanguageModel, str, int], Fact]:
    """Makes a fact about a subject that a model knows: its object is the most likely next word."""

    def make(lm: LanguageModel, subject: str, number: int) -> Fact:
        with torch.no_grad():
            logits = lm.model(torch.tensor([lm.tokens(f"{subject} is located in the")])).logits[0, -1]
        words = map(lm.tokenizer.decode, logits.argsort(descending=True).tolist())
        answer = next(word for word in words if "<" not in word)
        new = "English" if answer != "English" else "Rome"
        more = {"paraphrases": (f"where is {subject} ? in the",), "neighbourhood": ("Italy is located in the",)}
        return Fact(subject, "{} is located in the", new, answer, id=f"fact-{number}", **more)

    return make
