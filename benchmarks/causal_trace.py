"""Causal tracing: the plain way against ours, on the same prompts, in one run.

Plain: for each cell a full forward of the clean row and all corrupted rows, all positions and all logits, with a hook
that restores the clean row's state (the authors' way). It is timed on every `--every`-th cell of the grid and scaled
up; the cells it does run are compared with ours. Also prints the rank correlation of attribution patching.

    python benchmarks/causal_trace.py [--prompts 3] [--site block] [--model smollm2-135m]
"""

import statistics
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from harness import parser_of, print_result, timed
from scipy.stats import spearmanr

from corrigenda import Fact, LanguageModel, load
from corrigenda.forward.interventions import Apply, intervene
from corrigenda.models.sites import Site
from corrigenda.runs.environment import machine
from locate import CausalTrace, Noise
from locate.question import ask
from locate.tracing.noise import added_to_embeddings

PROMPTS = [
    ("Vinson Massif", "{} is located in the continent of"),
    ("Marshall Islands", "In {}, the language spoken is a mixture of"),
    ("Eiffel Tower", "The {} is located in the city of"),
    ("Danielle Darrieux", "The mother tongue of {} is"),
    ("Catalonia", "{} belongs to the continent of"),
]


def plain(lm: LanguageModel, fact: Fact, settings: CausalTrace, cells: list[tuple[int, int]]) -> list[float]:
    """P(answer) at some cells (layer, position), a full forward each."""
    question = ask(lm, fact, "top")
    begin, end = question.subject
    noise = settings.noise.draw(settings.noise.level(lm), end - begin, lm.model.get_input_embeddings().embedding_dim)
    noise = torch.cat([torch.zeros_like(noise[:1]), noise])
    batch = lm.batch([question.ids] * len(noise))
    scores = []
    for layer, position in cells:

        def restore(output: torch.Tensor, position: int = position) -> torch.Tensor:
            restored = output.clone()
            restored[1:, position] = output[0, position]
            return restored

        with torch.no_grad(), ExitStack() as stack:
            stack.enter_context(added_to_embeddings(lm, noise, begin))
            for number in settings.layers(layer, lm.n_layers):
                stack.enter_context(intervene(lm, Site(settings.site, number), Apply(restore)))
            logits = lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
            scores.append(float(logits[1:, -1].softmax(-1)[:, question.answer_ids[0]].mean()))
    return scores


def compare(lm: LanguageModel, fact: Fact, settings: CausalTrace, every: int) -> dict[str, Any]:
    """One prompt's grid in the plain way (some of its cells, scaled up), by ours, and by attribution patching."""
    our_seconds, trace = timed(lambda: settings.find(lm, fact, "top"))
    attribution_seconds, estimate = timed(lambda: replace(settings, method="attribution").find(lm, fact, "top"))
    grid = [(layer, position) for layer in range(lm.n_layers) for position in range(len(trace.tokens))]
    cells = grid[::every]
    some, scores = timed(lambda: plain(lm, fact, settings, cells))
    slow = some * len(grid) / len(cells)
    inside = trace.scores[:, trace.subject[0] :].flatten(), estimate.scores[:, trace.subject[0] :].flatten()
    row = {
        "prompt": trace.prompt,
        "tokens": len(trace.tokens),
        "subject_begins": trace.subject[0],
        "plain_seconds": slow,
        "our_seconds": our_seconds,
        "ratio": slow / our_seconds,
        "largest_difference": max(abs(a - float(trace.scores[cell])) for a, cell in zip(scores, cells, strict=True)),
        "attribution_seconds": attribution_seconds,
        "attribution_ratio": slow / attribution_seconds,
        "attribution_rank_correlation": float(spearmanr(*inside).statistic),
    }
    print(
        f"{row['prompt']!r} ({row['tokens']} tokens): plain {slow:.1f} s, ours {our_seconds:.1f} s, "
        f"{row['ratio']:.1f}x, difference {row['largest_difference']:.1e}; attribution {attribution_seconds:.2f} s, "
        f"{row['attribution_ratio']:.0f}x, rank correlation {row['attribution_rank_correlation']:.2f}",
        flush=True,
    )
    return row


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--site", default="block", choices=["block", "ffn", "attention"])
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many of the built-in prompts")
    parser.add_argument("--every", type=int, default=7, help="the plain way runs every so-many-th cell")
    options = parser.parse_args()
    lm = load(options.model)
    settings = CausalTrace(site=options.site, noise=Noise(samples=10))
    settings.noise.level(lm)
    facts = [Fact(subject, prompt, "any") for subject, prompt in PROMPTS]
    replace(settings, method="attribution").find(lm, facts[0], "top")  # warm up, both ways
    plain(lm, facts[0], settings, [(0, 0)])
    rows = [compare(lm, fact, settings, options.every) for fact in facts[: options.prompts]]
    medians = ("ratio", "attribution_ratio", "attribution_rank_correlation")
    result = {
        "benchmark": "causal_trace",
        "model": lm.name,
        "site": options.site,
        **{key: statistics.median(row[key] for row in rows) for key in medians},
        "prompts": rows,
        "machine": machine(),
    }
    print_result(result)


if __name__ == "__main__":
    main()
