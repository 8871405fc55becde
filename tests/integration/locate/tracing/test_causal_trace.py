"""Causal tracing: against a brute-force tracer in every family, the authors' numbers, and by hand."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from locate import CausalTrace, Noise

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English")

NOISE = Noise(samples=2, sigma=2.0, seed=7)
PLACES = [
    *(("block", family) for family in (*tiny.DECODERS, *tiny.MIXTURES)),
    *(
        (site, family)
        for site in ("ffn", "attention")
        for family in (*tiny.KINDS, *tiny.MIXTURE_KINDS)
        if family != "bert"
    ),
]
"""What is restored where: parts of a block in one family of each kind, since every site is tried in every family."""


def site_module(lm: LanguageModel, site: str, layer: int) -> torch.nn.Module:
    block = lm.architecture.blocks[layer]
    if site == "block":
        return block
    if site == "ffn" and hasattr(block, "mlp") and hasattr(block.mlp, "experts"):
        return block.mlp
    return lm.architecture.values(layer) if site == "ffn" else lm.architecture.attention(layer)


def brute_force(lm: LanguageModel, fact: Fact, settings: CausalTrace, answer: list[int]) -> Tensor:
    """(layer, position): a whole forward of one row for each cell and noise draw, with plain module hooks."""
    prompt = lm.tokenizer(fact.statement)["input_ids"]
    n, depth = len(prompt), len(lm.architecture.blocks)
    subject = lm.tokenizer(fact.subject, add_special_tokens=False)["input_ids"]
    begin = next(i for i in range(n) if prompt[i : i + len(subject)] == subject)
    ids = torch.tensor([prompt + answer[:-1]])
    shape = (settings.noise.samples, len(subject), lm.model.get_input_embeddings().embedding_dim)
    draws = torch.randn(shape, generator=torch.Generator().manual_seed(settings.noise.seed)) * settings.noise.sigma

    def run(noise: Tensor | None, changes: dict[tuple[str, int], list[tuple[int, Tensor]]], keep: list[str]):
        kept: dict[tuple[str, int], Tensor] = {}
        with ExitStack() as stack:
            if noise is not None:

                def corrupt(_module, _args, output):
                    output = output.clone()
                    output[:, begin : begin + len(subject)] += noise
                    return output

                stack.callback(lm.model.get_input_embeddings().register_forward_hook(corrupt).remove)
            for site in {*keep, *(site for site, _ in changes)}:
                for layer in range(depth):

                    def hook(_module, _args, output, site=site, layer=layer):
                        tensor = output[0] if isinstance(output, tuple) else output
                        flat = tensor.ndim == 2
                        tensor = tensor[None].clone() if flat else tensor.clone()
                        for position, value in changes.get((site, layer), []):
                            tensor[0, position] = value
                        kept[site, layer] = tensor[0].clone()  # Falcon goes on to add to it in place
                        tensor = tensor[0] if flat else tensor
                        return (tensor, *output[1:]) if isinstance(output, tuple) else tensor

                    stack.callback(site_module(lm, site, layer).register_forward_hook(hook).remove)
            logits = lm.model(input_ids=ids, use_cache=False).logits[0]
        places = torch.arange(n - 1, n - 1 + len(answer))
        return float(logits[places].softmax(-1)[torch.arange(len(answer)), answer].prod()), kept

    site, severed = settings.site, settings.severed
    with torch.no_grad():
        _, clean = run(None, {}, [site])
        scores = torch.zeros(depth, n)
        for noise in draws:
            _, corrupted = run(noise, {}, [severed or site])
            for layer in range(depth):
                half = settings.window // 2
                window = (
                    [layer]
                    if site == "block"
                    else range(max(0, layer - half), min(depth, layer - half + settings.window))
                )
                for position in range(n):
                    changes = {(site, number): [(position, clean[site, number][position])] for number in window}
                    if severed:
                        for number in range(layer + 1, depth):
                            changes[severed, number] = [(position, corrupted[severed, number][position])]
                    scores[layer, position] += run(noise, changes, [])[0] / len(draws)
    return scores


@pytest.mark.parametrize(("site", "family"), PLACES)
def test_every_cell_in_every_family(site: str, family: str) -> None:
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
