"""What tests of closed forms take in place of something dear: three facts, and second moments of no text."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import editing.locate_then_edit.moments
from corrigenda import Fact, LanguageModel
from corrigenda.moments.second_moment import SecondMoment
from corrigenda.moments.text import Text

FACTS = [
    Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris", id="tower"),
    Fact("Danielle Darrieux", "the mother tongue of {} is", "the English language", "French", id="tongue"),
    Fact("Big Ben", "in the city with {} on the river Thomas plays the", "guitar", "piano", id="plays"),
]


def diagonal_moments(lm: LanguageModel, layers: Sequence[int], text: Text) -> dict[int, SecondMoment]:
    """C of the tiny models' 48 coefficients, diagonal and well conditioned."""
    matrix = torch.diag(torch.linspace(0.1, 2, 48, dtype=torch.float64))
    return {layer: SecondMoment(matrix, 1000, layer, text) for layer in layers}


def without_text(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Gives the closed forms `diagonal_moments`, and an empty cache."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(cache))
    monkeypatch.setattr(editing.locate_then_edit.moments, "second_moments", diagonal_moments)


def identity_moments(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Gives ROME and the closed forms the identity for C, and an empty cache."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(cache))

    def moments(lm: LanguageModel, layers: Sequence[int], text: Text) -> dict[int, SecondMoment]:
        widths = {layer: lm.memory(layer).d_ffn for layer in layers}
        return {
            layer: SecondMoment(torch.eye(n, dtype=torch.float64), 1000, layer, text) for layer, n in widths.items()
        }

    monkeypatch.setattr(editing.locate_then_edit.moments, "second_moments", moments)
