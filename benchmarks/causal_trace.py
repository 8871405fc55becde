"""Causal tracing: the plain way against ours, on the same prompts, in one run.

Plain: for each cell a full forward of the clean row and all corrupted rows, all positions and all logits, with a hook
that restores the clean row's state (the authors' way). Ours: only what a restored state can change. Prints the rank
correlation of attribution patching with the exact grid too.

    python benchmarks/causal_trace.py [--prompts 3] [--site block] [--model smollm2-135m]

The plain way is timed on every `--every`-th cell of the grid (all cells cost it the same) and scaled up; the cells it
does run are compared with ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack

import torch
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--site", default="block", choices=["block", "ffn", "attention"])
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many of the built-in prompts")
    parser.add_argument("--every", type=int, default=7, help="the plain way runs every so-many-th cell")
    arguments = parser.parse_args()
    lm = load(arguments.model)
    settings = CausalTrace(site=arguments.site, noise=Noise(samples=10))
    approximate = CausalTrace(site=arguments.site, noise=Noise(samples=10), method="attribution")
    settings.noise.level(lm)
    approximate.find(lm, Fact(*PROMPTS[0], "any"), "top")  # warm up, both ways
    plain(lm, Fact(*PROMPTS[0], "any"), settings, [(0, 0)])
    rows = []
    for subject, prompt in PROMPTS[: arguments.prompts]:
        fact = Fact(subject, prompt, "any")
        begin = time.perf_counter()
        trace = settings.find(lm, fact, "top")
        ours = time.perf_counter() - begin
        begin = time.perf_counter()
        estimate = approximate.find(lm, fact, "top")
        fast = time.perf_counter() - begin
        grid = [(layer, position) for layer in range(lm.n_layers) for position in range(len(trace.tokens))]
        cells = grid[:: arguments.every]
        begin = time.perf_counter()
        scores = plain(lm, fact, settings, cells)
        slow = (time.perf_counter() - begin) * len(grid) / len(cells)
        mine = [float(trace.scores[cell]) for cell in cells]
        inside = trace.scores[:, trace.subject[0] :].flatten(), estimate.scores[:, trace.subject[0] :].flatten()
        rows.append(
            {
                "prompt": trace.prompt,
                "tokens": len(trace.tokens),
                "subject_begins": trace.subject[0],
                "plain_seconds": slow,
                "our_seconds": ours,
                "ratio": slow / ours,
                "largest_difference": max(abs(a - b) for a, b in zip(scores, mine, strict=True)),
                "attribution_seconds": fast,
                "attribution_ratio": slow / fast,
                "attribution_rank_correlation": float(spearmanr(*inside).statistic),
            }
        )
        row = rows[-1]
        print(
            f"{row['prompt']!r} ({row['tokens']} tokens): plain {slow:.1f} s, ours {ours:.1f} s, {row['ratio']:.1f}x, "
            f"difference {row['largest_difference']:.1e}; attribution {fast:.2f} s, {row['attribution_ratio']:.0f}x, "
            f"rank correlation {row['attribution_rank_correlation']:.2f}",
            flush=True,
        )
    result = {
        "benchmark": "causal_trace",
        "model": lm.name,
        "site": arguments.site,
        "ratio": statistics.median(row["ratio"] for row in rows),
        "attribution_ratio": statistics.median(row["attribution_ratio"] for row in rows),
        "attribution_rank_correlation": statistics.median(row["attribution_rank_correlation"] for row in rows),
        "prompts": rows,
        "machine": machine(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
