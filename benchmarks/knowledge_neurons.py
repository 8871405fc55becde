"""Knowledge neurons by integrated gradients: the plain way and ours, side by side in one run.

The plain way is the textbook one: for each layer a forward of the whole model over all positions, with all logits, with
the coefficients at the last position scaled, all steps in one batch; and a backward to the coefficients. All settings
are the same, and the results are compared before the times are.

    python benchmarks/knowledge_neurons.py [--prompt "..."] [--answer Paris] [--repeats 3]

The last line is a JSON object: `ratio` is plain / ours for one prompt, the median of the repeats; `ratio_batch` for one
prompt in a batch of 8.
"""

from functools import partial

import torch
from harness import about, in_turns, parser_of, print_result, summary, timed
from torch import Tensor, nn

from corrigenda import LanguageModel, load
from corrigenda.runs.environment import peak_memory_mb
from locate.neurons.knowledge_neurons import attribute_all

BATCH = 8


def plain(lm: LanguageModel, prompt: str, answer: str, steps: int) -> Tensor:
    """The attributions of all layers, (layer, d_ffn), written for itself, without the code it is compared with."""
    ids = torch.tensor([lm.tokenizer(prompt)["input_ids"]])
    target = lm.tokenizer(" " + answer)["input_ids"]
    if len(target) != 1:
        raise SystemExit(f"the plain way is written for answers of one token; {answer!r} has {len(target)}")
    scales = (torch.arange(steps) + 0.5) / steps
    rows = []
    for layer in range(lm.n_layers):
        module = lm.architecture.values(layer)
        seen: list[Tensor] = []

        def look(_module: nn.Module, args: tuple[Tensor, ...], seen: list[Tensor] = seen) -> None:
            seen.append(args[0][0, -1].detach())

        handle = module.register_forward_pre_hook(look)
        with torch.no_grad():
            lm.model(input_ids=ids, use_cache=False)
        handle.remove()
        leaf = (scales[:, None] * seen[0]).requires_grad_()

        def put(_module: nn.Module, args: tuple[Tensor, ...], leaf: Tensor = leaf) -> tuple[Tensor, ...]:
            return (torch.cat([args[0][:, :-1], leaf[:, None]], dim=1),)

        handle = module.register_forward_pre_hook(put)
        logits = lm.model(input_ids=ids.expand(steps, -1), use_cache=False).logits
        handle.remove()
        likely = logits.softmax(-1)[:, -1, target[0]]
        [gradient] = torch.autograd.grad(likely.sum(), leaf)
        rows.append(seen[0] * gradient.mean(0))
    return torch.stack(rows)


def ours(lm: LanguageModel, prompts: list[str], answer: str, steps: int) -> list[Tensor]:
    """The same of several prompts."""
    found = attribute_all(lm, [(prompt, answer) for prompt in prompts], steps=steps)
    return [result.attributions for result in found]


def differ(expected: Tensor, result: list[Tensor]) -> float:
    """The largest difference, relative to the largest attribution."""
    return float((result[0] - expected).abs().max() / expected.abs().max())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--prompt", default="The Eiffel Tower is located in the city of")
    parser.add_argument("--answer", default="Paris")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    lm = load(options.model)
    ours(lm, [options.prompt], options.answer, 1)  # warm up
    plainly = partial(plain, lm, options.prompt, options.answer, options.steps)
    single = partial(ours, lm, [options.prompt], options.answer, options.steps)
    timings = [in_turns(plainly, single, differ, 1e-3) for _ in range(options.repeats)]
    batch_seconds, _ = timed(partial(ours, lm, [options.prompt] * BATCH, options.answer, options.steps))
    figures = summary(timings)
    result = {
        **about("knowledge_neurons", lm),
        "prompt_tokens": len(lm.tokens(options.prompt)),
        "layers": lm.n_layers,
        "steps": options.steps,
        **figures,
        "ours_seconds_per_prompt_batch": batch_seconds / BATCH,
        "ratio_batch": figures["plain_seconds"] * BATCH / batch_seconds,
        "peak_memory_mb": peak_memory_mb(),
    }
    print_result(result)


if __name__ == "__main__":
    main()
