"""Causal tracing: against a brute-force tracer in every family, the authors' numbers, and by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from corrigenda import Fact, LanguageModel
from locate import CausalTrace, Noise, causal_trace


def parity(shared: Path) -> list[dict]:
    return json.loads((shared / "parity" / "causal_trace_smollm2.json").read_text())["prompts"]


FACTS = [
    Fact("Catalonia", "{} belongs to the continent of", "Asia"),
    Fact("Marshall Islands", "In {}, the language spoken is a mixture of", "Latin"),
]


@pytest.mark.slow
def test_agrees_with_the_authors(smollm2: LanguageModel, shared: Path) -> None:
    reference = parity(shared)[0]
    trace = causal_trace(smollm2, FACTS[0], "top", noise=Noise(sigma=reference["noise"], seed=1, recipe="rome"))
    assert trace.subject == tuple(reference["subject_token_range"])
    assert abs(trace.p_clean - reference["p"]) < 1e-4
    assert (trace.scores.T - torch.tensor(reference["scores"])).abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "site", "key"), [(0, "ffn", "mlp"), (0, "attention", "attn"), (1, "block", "scores")]
)
def test_agrees_with_the_authors_at_two_tokens(
    number: int, site: Any, key: str, smollm2: LanguageModel, shared: Path
) -> None:
    """At the subject's and at the prompt's last token, in all layers: a quarter of the grid's work."""
    reference = parity(shared)[number]
    noise = Noise(sigma=reference["noise"], seed=1, recipe="rome")
    effects = CausalTrace(site=site, noise=noise).at_last_tokens(smollm2, FACTS[number], "top")
    at = reference["subject_token_range"][1] - 1
    # At the last layer the state of a token that predicts nothing changes nothing: there the run is the corrupted one.
    corrupted = reference["scores"][at][-1]
    expected = torch.tensor([reference[key][at], reference[key][-1]]) - corrupted
    assert float(expected.abs().max()) > 0.05
    assert (effects - expected).abs().max() < 1e-4


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
