"""ROME's solve for k* and v*: the plain way and ours, side by side in one run.

The plain way is the textbook one: at each step a forward of the whole model over all positions of all prompts, with all
logits, and a backward from there; one fact at a time. The prompts, steps, hyper-parameters, precision and number of
threads are the same, no fact stops early, and the results are compared before the times are.

    python benchmarks/rome.py [--facts counterfact.json] [--count 8]

Prints a JSON object as its last line: `ratio` is plain / ours for one fact, `ratio_batch` for one fact in a batch of 8;
`operations_ratio` and `operations_ratio_batch` are those of the multiplications in matrix products and attention, which
is what the times would be if nothing else took any.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from corrigenda import Fact, LanguageModel, load
from corrigenda.data import read_facts
from corrigenda.runs.environment import peak_memory_mb
from editing.contexts import sampled_prefixes
from editing.locate_then_edit.keys import mean_keys
from editing.locate_then_edit.prompts import build_prompts, run_prompts
from editing.locate_then_edit.rome import Rome
from editing.locate_then_edit.targets import ValueSettings, solve_target_values

BATCH = 8


def plain(
    lm: LanguageModel,
    fact: Fact,
    layer: int,
    prefixes: Sequence[str],
    settings: ValueSettings,
    module: torch.nn.Module | None = None,
) -> tuple[Tensor, Tensor]:
    """k* and v* of one fact with whole forwards; written for itself, without the code it is compared with.

    With another module than the one that holds the layer's values, v* is of its output, and the first is the mean of
    what enters it.
    """
    prompts = build_prompts(lm, [fact], prefixes, settings.kl_prompt, settings.kl_position)  # tokens only
    batch, subject = prompts.batch, prompts.subject.tolist()
    lengths = batch.lengths.tolist()
    n = int(prompts.rewriting.sum())  # the last row is the KL prompt, cut at the subject
    kl_at = subject[n]
    module = module or lm.architecture.values(layer)
    per_row = prompts.predicts.sum(1)
    targets = prompts.targets[prompts.targets >= 0].view(n, -1)
    delta = torch.zeros(lm.memory(layer).d_model, requires_grad=True)
    seen: dict[str, Tensor] = {}

    def hook(_module: object, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if "v0" not in seen:
            seen["v0"] = output[0, subject[0]].detach().clone()
            seen["norms"] = output[range(n), subject[:n]].detach().norm(dim=1)
            seen["keys"] = torch.stack([args[0][row, at] for row, at in enumerate(subject[:n])]).detach()
        output = output.clone()
        for row, at in enumerate(subject):
            output[row, at] = output[row, at] + delta
        return output

    optimiser = torch.optim.Adam([delta], lr=settings.lr)
    handle = module.register_forward_hook(hook)
    before = None
    for step in range(settings.steps):
        logits = lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
        log_probs = logits.log_softmax(-1)
        kl_log_probs = log_probs[n, kl_at]
        if before is None:
            before = kl_log_probs.detach()
        nll = torch.zeros(())
        for row in range(n):
            at = lengths[row] - int(per_row[row])
            for i, token in enumerate(targets[row]):
                nll = nll - log_probs[row, at + i, token] / (n * len(targets[row]))
        kl = (kl_log_probs.exp() * (kl_log_probs - before)).sum()
        v0 = seen["v0"]
        loss = (
            nll
            + settings.kl_factor * kl
            + settings.weight_decay * (delta.square().sum() + 1e-30).sqrt() / v0.norm() ** 2
        )
        if step == settings.steps - 1:
            break
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        bound = settings.clamp_norm_factor * seen["norms"].quantile(0.5)
        with torch.no_grad():
            if delta.norm() > bound:
                delta.mul_(bound / delta.norm())
    handle.remove()
    return seen["keys"].mean(0), seen["v0"] + delta.detach()


def ours(
    lm: LanguageModel, facts: Sequence[Fact], layer: int, prefixes: Sequence[str], settings: ValueSettings
) -> tuple[Tensor, Tensor]:
    """k* and v* of several facts, (fact, d_ffn) and (fact, d_model)."""
    run = run_prompts(lm, build_prompts(lm, facts, prefixes, settings.kl_prompt, settings.kl_position), [layer])
    return mean_keys(run, layer), solve_target_values(lm, run, layer, settings).values


def timed(call: Callable[[], tuple[Tensor, Tensor]]) -> tuple[float, tuple[Tensor, Tensor]]:
    """Seconds, and what the call returned."""
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def operations(solve: Callable[[ValueSettings], object], settings: ValueSettings) -> int:
    """Floating-point operations of a solve with these settings, counted on its first two steps."""
    counted = []
    for steps in (1, 2):
        with FlopCounterMode(display=False) as counter:
            solve(dataclasses.replace(settings, steps=steps))
        counted.append(counter.get_total_flops())
    return counted[0] + (settings.steps - 1) * (counted[1] - counted[0])


def main() -> None:
    """Runs the comparison and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--layer", type=int)
    parser.add_argument("--facts", default="embedded", help="a data set as `data.path` takes it")
    parser.add_argument("--count", type=int, default=BATCH, help="how many facts; also the size of the batch")
    options = parser.parse_args()
    lm = load(options.model)
    layer = Rome(layer=options.layer).resolved_layer(lm)
    facts = list(read_facts(options.facts, limit=options.count))
    rome = Rome()
    prefixes = sampled_prefixes(lm, rome.prefix_lengths)
    settings = dataclasses.replace(rome.value, early_stop_loss=-1.0)
    ours(lm, facts[:1], layer, prefixes, dataclasses.replace(settings, steps=2))  # warm up
    rows = []
    for fact in facts:
        plain_seconds, (key, value) = timed(partial(plain, lm, fact, layer, prefixes, settings))
        ours_seconds, (keys, values) = timed(partial(ours, lm, [fact], layer, prefixes, settings))
        torch.testing.assert_close(keys[0], key, atol=1e-3, rtol=1e-3)
        difference = float((values[0] - value).norm() / value.norm())
        rows.append((plain_seconds, ours_seconds, difference))
        message = f"plain {plain_seconds:.1f} s, ours {ours_seconds:.1f} s, relative difference of v* {difference:.1e}"
        print(f"{fact.statement!r}: {message}", file=sys.stderr)
    batch_seconds, _ = timed(partial(ours, lm, facts, layer, prefixes, settings))
    plain_all = [row[0] for row in rows]
    counted = [
        (
            operations(partial(plain, lm, fact, layer, prefixes), settings),
            operations(partial(ours, lm, [fact], layer, prefixes), settings),
        )
        for fact in facts
    ]
    counted_batch = operations(partial(ours, lm, facts, layer, prefixes), settings)
    result = {
        "benchmark": "rome",
        "model": lm.name,
        "device": str(lm.device),
        "threads": torch.get_num_threads(),
        "layer": layer,
        "steps": settings.steps,
        "contexts": len(prefixes),
        "data": options.facts,
        "facts": len(facts),
        "plain_seconds_per_fact": statistics.median(plain_all),
        "ours_seconds_per_fact": statistics.median(row[1] for row in rows),
        "ratio": statistics.median(row[0] / row[1] for row in rows),
        "ratio_smallest": min(row[0] / row[1] for row in rows),
        "ours_seconds_per_fact_batch": batch_seconds / len(facts),
        "ratio_batch": sum(plain_all) / batch_seconds,
        "operations_ratio": statistics.median(theirs / mine for theirs, mine in counted),
        "operations_ratio_batch": sum(theirs for theirs, _ in counted) / counted_batch,
        "largest_difference": max(row[2] for row in rows),
        "peak_memory_mb": peak_memory_mb(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
