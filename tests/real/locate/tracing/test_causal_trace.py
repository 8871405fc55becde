"""Causal tracing: against a brute-force tracer in every family, the authors' numbers, and by hand."""

import json
from pathlib import Path

import pytest
import torch

from corrigenda import Fact, LanguageModel
from locate import Noise, causal_trace


def parity(shared: Path) -> list[dict]:
    return json.loads((shared / "parity" / "causal_trace_smollm2.json").read_text())["prompts"]


@pytest.mark.slow
def test_agrees_with_the_authors(smollm2: LanguageModel, shared: Path) -> None:
    facts = [
        Fact("Catalonia", "{} belongs to the continent of", "Asia"),
        Fact("Marshall Islands", "In {}, the language spoken is a mixture of", "Latin"),
    ]
    checked = 0
    for fact, reference in zip(facts, parity(shared), strict=True):
        noise = Noise(sigma=reference["noise"], seed=1, recipe="rome")
        for site, key in (("block", "scores"), ("ffn", "mlp"), ("attention", "attn")):
            if key in reference:
                trace = causal_trace(smollm2, fact, "top", site=site, noise=noise)
                assert trace.subject == tuple(reference["subject_token_range"])
                assert abs(trace.p_clean - reference["p"]) < 1e-4
                assert (trace.scores.T - torch.tensor(reference[key])).abs().max() < 1e-4
                checked += 1
    assert checked == 4


@pytest.mark.slow
def test_subjects_that_tokens_cut_across(smollm2: LanguageModel) -> None:
    """The stated rule: every token that holds a character of the subject belongs to it."""

    def subject_tokens(subject: str, prompt: str) -> str:
        trace = causal_trace(
            smollm2, Fact(subject, prompt, "x"), "top", method="attribution", noise=Noise(samples=1, sigma=0.1)
        )
        begin, end = trace.subject
        ids = smollm2.tokens(trace.prompt)[begin:end]
        return smollm2.tokenizer.decode(ids)

    assert subject_tokens("Marshall Islands", "In {}, people speak") == " Marshall Islands"
    assert subject_tokens("Яндекс", "The company {} is in") == " Яндекс"
    assert "St. Louis" in subject_tokens("St. Louis", "The city ({}) is in")
