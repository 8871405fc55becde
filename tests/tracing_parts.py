"""A tracer by brute force, for tests of causal tracing."""

from contextlib import ExitStack

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from locate import CausalTrace, Noise

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English")

NOISE = Noise(samples=3, sigma=2.0, seed=7)


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
    hidden = [place for place in range(n) if (begin <= place < begin + len(subject)) == (settings.hidden == "subject")]
    ids = torch.tensor([prompt + answer[:-1]])
    shape = (settings.noise.samples, hidden[-1] + 1 - hidden[0], lm.model.get_input_embeddings().embedding_dim)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(settings.noise.seed)) * settings.noise.sigma
    draws = torch.zeros(len(drawn), n, shape[2])
    draws[:, hidden] = drawn[:, [place - hidden[0] for place in hidden]]

    def run(noise: Tensor | None, changes: dict[tuple[str, int], list[tuple[int, Tensor]]], keep: list[str]):
        kept: dict[tuple[str, int], Tensor] = {}
        with ExitStack() as stack:
            if noise is not None:

                def corrupt(_module, _args, output):
                    output = output.clone()
                    output[:, :n] += noise
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
