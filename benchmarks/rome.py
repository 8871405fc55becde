"""ROME's solve for k* and v*: the plain way and ours, side by side in one run.

The plain way is the textbook one: at each step a forward of the whole model over all positions of all prompts, with all
logits, and a backward from there; one fact at a time. All settings are the same, no fact stops early, and the results
are compared before the times are.

    python benchmarks/rome.py [--facts counterfact.json] [--count 8]

The last line is a JSON object: `ratio` is plain / ours for one fact, `ratio_batch` for one fact in a batch of 8;
`operations_ratio` and `operations_ratio_batch` count multiplications alone; `ratio_bfloat16` and
`ratio_batch_bfloat16` are plain in float32 / ours with `value.products=bfloat16`, and `cosine_bfloat16` says how like
its v* is, the worst of the facts.
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from harness import about, in_turns, parser_of, print_result, relative, summary, timed
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from corrigenda import Fact, LanguageModel, load
from corrigenda.data import read_facts
from corrigenda.runs.environment import peak_memory_mb
from editing.locate_then_edit.keys import mean_keys
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import build_prompts
from editing.locate_then_edit.rome import Rome
from editing.locate_then_edit.targets import ValueSettings, solve_target_values
from editing.shared.contexts import contexts

BATCH = 8


def mean_nll(log_probs: Tensor, begins: Sequence[int], targets: Tensor) -> Tensor:
    """-log P of the targets, (row, token), which are predicted from a position of each row on: the mean over all."""
    nll = torch.zeros(())
    for row, (begin, tokens) in enumerate(zip(begins, targets, strict=True)):
        for place, token in enumerate(tokens):
            nll = nll - log_probs[row, begin + place, token] / (len(targets) * len(tokens))
    return nll


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
    n = int(prompts.rewriting.sum())  # the last row is the KL prompt, cut at the subject
    kl_at = subject[n]
    module = module or lm.architecture.values(layer)
    begins = (batch.lengths - prompts.predicts.sum(1))[:n].tolist()
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
        kl = (kl_log_probs.exp() * (kl_log_probs - before)).sum()
        decay = (delta.square().sum() + 1e-30).sqrt() / seen["v0"].norm() ** 2
        nll = mean_nll(log_probs, begins, targets)
        loss = nll + settings.kl_factor * kl + settings.weight_decay * decay
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


def differ(expected: tuple[Tensor, Tensor], result: tuple[Tensor, Tensor]) -> float:
    """How far v* is from the plain way's, relative to it; k* has to be the same."""
    torch.testing.assert_close(result[0][0], expected[0], atol=1e-3, rtol=1e-3)
    return relative(expected[1], result[1][0])


def apart(expected: tuple[Tensor, Tensor], result: tuple[Tensor, Tensor]) -> float:
    """One less the cosine of v* and the other v*."""
    return 1 - torch.cosine_similarity(expected[1], result[1]).item()


def operations(solve: Callable[[ValueSettings], object], settings: ValueSettings) -> int:
    """Floating-point operations of a solve with these settings, counted on its first two steps."""
    counted = []
    for steps in (1, 2):
        with FlopCounterMode(display=False) as counter:
            solve(dataclasses.replace(settings, steps=steps))
        counted.append(counter.get_total_flops())
    return counted[0] + (settings.steps - 1) * (counted[1] - counted[0])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--layer", type=int)
    parser.add_argument("--facts", default="embedded", help="a data set as `data.path` takes it")
    parser.add_argument("--count", type=int, default=BATCH, help="how many facts; also the size of the batch")
    options = parser.parse_args()
    lm = load(options.model)
    layer = Rome(layer=options.layer).resolved_layer(lm)
    facts = list(read_facts(options.facts, limit=options.count))
    rome = Rome()
    prefixes = contexts(lm, rome.prefix_lengths, rome.text)
    settings = dataclasses.replace(rome.value, early_stop_loss=-1.0)
    ours(lm, facts[:1], layer, prefixes, dataclasses.replace(settings, steps=2))  # warm up
    plainly = {fact.id: partial(plain, lm, fact, layer, prefixes) for fact in facts}
    solved = {fact.id: partial(ours, lm, [fact], layer, prefixes) for fact in facts}
    timings = [
        in_turns(
            partial(plainly[fact.id], settings), partial(solved[fact.id], settings), differ, 1e-3, repr(fact.statement)
        )
        for fact in facts
    ]
    together = partial(ours, lm, facts, layer, prefixes)
    batch_seconds, _ = timed(partial(together, settings))
    half = dataclasses.replace(settings, products="bfloat16")
    halves = [
        in_turns(partial(each, settings), partial(each, half), apart, 0.1, "ours, and in bfloat16")
        for each in solved.values()
    ]
    batch_half_seconds, _ = timed(partial(together, half))
    counts = [(operations(plainly[each], settings), operations(solved[each], settings)) for each in plainly]
    result = {
        **about("rome", lm),
        "layer": layer,
        "steps": settings.steps,
        "contexts": len(prefixes),
        "data": options.facts,
        "facts": len(facts),
        **summary(timings, "_per_fact"),
        "ours_seconds_per_fact_batch": batch_seconds / len(facts),
        "ratio_batch": sum(each.plain for each in timings) / batch_seconds,
        "ratio_bfloat16": statistics.median(each.plain / one.ours for each, one in zip(timings, halves, strict=True)),
        "ratio_batch_bfloat16": sum(each.plain for each in timings) / batch_half_seconds,
        "cosine_bfloat16": 1 - max(each.difference for each in halves),
        "operations_ratio": statistics.median(theirs / mine for theirs, mine in counts),
        "operations_ratio_batch": sum(theirs for theirs, _ in counts) / operations(together, settings),
        "peak_memory_mb": peak_memory_mb(),
    }
    print_result(result)


if __name__ == "__main__":
    main()
