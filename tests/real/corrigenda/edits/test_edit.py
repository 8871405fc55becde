"""Edits come and go bit for bit, survive the disk, and refuse what they were not made for."""

from __future__ import annotations

import tiny
import torch

from corrigenda import ContextEdit, Fact, LanguageModel, Origin


def origin(lm: LanguageModel, *facts: Fact) -> Origin:
    return Origin(lm.name, lm.fingerprint, "by hand", {"rate": 0.5}, facts, tuple({"loss": 0.25} for _ in facts))


def build(family: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    lm = tiny.build(family)
    lm.model.to(dtype)
    return lm


def test_context_tells_the_real_model(smollm2: LanguageModel) -> None:
    prompt = "The name of Martha's dog is"
    edit = ContextEdit(origin(smollm2), f"{prompt} Quentin. ")
    with edit.applied(smollm2):
        assert smollm2.generate(prompt, 4).startswith(" Quentin")
    assert not smollm2.generate(prompt, 4).startswith(" Quentin")
