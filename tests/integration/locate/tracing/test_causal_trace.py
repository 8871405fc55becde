from dataclasses import replace

import pytest
import tiny
import torch
from tracing_parts import FACT, NOISE, brute_force

from locate import CausalTrace

NOISE = replace(NOISE, samples=2)


@pytest.mark.parametrize("site", ["block", "ffn", "attention"])
@pytest.mark.parametrize("family", [*tiny.DECODER_KINDS, *tiny.MIXTURE_KINDS])
def test_every_cell(site: str, family: str) -> None:
    lm = tiny.build(family)
    settings = CausalTrace(site=site, window=2, noise=NOISE)
    trace = settings.find(lm, FACT, "top")
    answer = trace.answer_ids
    expected = brute_force(lm, FACT, settings, list(answer))
    spread = float(expected.max() - expected.min())
    assert spread > 1e-4  # otherwise any tracer would do
    assert float((trace.scores - expected).abs().max()) < 1e-6 + 1e-3 * spread


@pytest.mark.parametrize("severed", ["ffn", "attention"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gptj", "gemma2"])
def test_severed(family: str, severed: str) -> None:
    lm = tiny.build(family)
    settings = CausalTrace(severed=severed, noise=NOISE)
    trace = settings.find(lm, FACT, "top")
    assert torch.allclose(trace.scores, brute_force(lm, FACT, settings, list(trace.answer_ids)), atol=2e-6)
    whole = replace(settings, severed=None).find(lm, FACT, "top")
    assert (trace.scores - whole.scores).abs().max() > 1e-5  # five times the tolerance
