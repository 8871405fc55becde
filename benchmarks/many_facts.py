"""Writing many facts with `memit`: the plain way and ours, in one run; and what one more fact costs, and memory.

The plain way is the authors': each fact's target is solved for by itself with forwards of the whole model over all
positions and with all logits; before each layer the rows of each fact run whole; and each layer's system is formed and
solved as it stands. All settings are the same, no fact stops early, and the updates are compared before the times are.
With `--keep` the targets of all facts are written to the disk, for runs on the same facts.

    python benchmarks/many_facts.py [--facts counterfact.json] [--count 48] [--compared 48] [--plain 4]
    python benchmarks/many_facts.py --count 3 --compared 2 --plain 1 --steps 3     # whether it runs: a minute

The last line is a JSON object: `ratio` is plain / ours in seconds a fact with all steps, the plain way's of the first
`--plain` facts, ours of the first `--compared`; `seconds_per_fact` is ours of all facts with early stops;
`one_more_ratio` is what one more fact costs an edit of all, over what it costs alone; `memory_over_model_mb` is the
most that was held while all facts were written, less what the loaded model and the second moments took.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from harness import Timing, about, parser_of, print_result, relative, summary, timed
from rome import plain
from torch import Tensor

from corrigenda import Fact, LanguageModel, load
from corrigenda.data import read_facts
from corrigenda.runs.environment import memory_mb, peak_memory_mb
from corrigenda.system.files import cache_folder
from editing import Memit, UltraEdit
from editing.locate_then_edit.prompts import build_prompts
from editing.shared.contexts import contexts

MORE = 3
"""So many facts are added one by one, each to the edit of all."""


def plain_targets(lm: LanguageModel, facts: Sequence[Fact], memit: Memit) -> Tensor:
    """The targets, (fact, d_model), one fact after another."""
    layer, prefixes = memit.resolved_layers(lm)[-1], contexts(lm, memit.prefix_lengths, memit.text, memit.seed)
    block = lm.architecture.block(layer)
    return torch.stack([plain(lm, fact, layer, prefixes, memit.value, block)[1] for fact in facts])


@torch.no_grad()
def plain_updates(lm: LanguageModel, facts: Sequence[Fact], memit: Memit, targets: Tensor) -> dict[int, Tensor]:
    """The layers' updates from the targets, with whole forwards and dense systems; for one length of contexts."""
    layers, prefixes = memit.resolved_layers(lm), contexts(lm, memit.prefix_lengths, memit.text, memit.seed)
    moments = memit.moments(lm)
    deltas: dict[int, Tensor] = {}
    untouched = {layer: lm.memory(layer).values.clone() for layer in layers}
    for place, layer in enumerate(layers):
        keys, outputs = [], []
        for fact in facts:
            prompts = build_prompts(lm, [fact], prefixes, memit.value.kl_prompt, memit.value.kl_position)  # tokens only
            rows, at = torch.arange(len(prompts.subject)), prompts.subject
            seen: dict[str, Tensor] = {}
            hooks = [
                lm.architecture.values(layer).register_forward_hook(
                    lambda _m, args, _o, seen=seen, rows=rows, at=at: seen.update(keys=args[0][rows, at])
                ),
                lm.architecture.block(layers[-1]).register_forward_hook(
                    lambda _m, _a, output, seen=seen, at=at: seen.update(block=output[0, at[0]])
                ),
            ]
            lm.model(input_ids=prompts.batch.input_ids, attention_mask=prompts.batch.attention_mask, use_cache=False)
            for hook in hooks:
                hook.remove()
            of_rows = seen["keys"][prompts.rewriting]
            bare = int(prompts.prefix[0]) == 0
            keys.append((of_rows[0] + of_rows[1:].mean(0)) / 2 if bare else of_rows.mean(0))
            outputs.append(seen["block"])
        K = torch.stack(keys).double()
        R = (targets - torch.stack(outputs)).double() / (len(layers) - place)
        C = moments[layer].matrix.clone()
        C.diagonal().add_(memit.ridge * moments[layer].scale)
        assert memit.ratio is not None
        weight = memit.ratio * 100 * K.square().sum(1).mean() / moments[layer].matrix.trace()
        deltas[layer] = torch.linalg.solve(weight * C + K.T @ K, K.T @ R)
        lm.memory(layer).add_to_values(deltas[layer].float())
    for layer, values in untouched.items():
        lm.memory(layer).values.copy_(values)
    return deltas


def one_more(lm: LanguageModel, memit: Memit, edit: Any, more: Sequence[Fact]) -> dict[str, float]:
    """Seconds of one more fact, added to an edit of many and alone."""
    added = []
    with edit.applied(lm):
        for fact in more:
            added.append(timed(partial(memit.extend, lm, edit, [fact]))[0])
    alone = [timed(partial(memit.edit, lm, [fact]))[0] for fact in more]
    return {
        "one_more_seconds": statistics.median(added),
        "one_alone_seconds": statistics.median(alone),
        "one_more_ratio": statistics.median(added) / statistics.median(alone),
    }


def plain_way(lm: LanguageModel, few: Sequence[Fact], thorough: Memit) -> tuple[float, float]:
    """Seconds of the plain way for some facts, and the largest difference of a layer's update from ours."""
    solving, targets = timed(lambda: plain_targets(lm, few, thorough))
    writing, expected = timed(lambda: plain_updates(lm, few, thorough, targets))
    ours = thorough.edit(lm, few)
    differences = [relative(delta, ours.delta(layer)) for layer, delta in expected.items()]
    assert max(differences) < 0.02, f"the updates differ by {differences}"
    return solving + writing, max(differences)


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = parser_of(__doc__)
    parser.add_argument("--facts", default="embedded", help="a data set as `data.path` takes it")
    parser.add_argument("--count", type=int, default=48, help="how many facts are written, if the data set has them")
    parser.add_argument("--compared", type=int, default=48, help="how many of them with all steps, for the ratio")
    parser.add_argument("--plain", type=int, default=4, help="how many of these in the plain way, too")
    parser.add_argument("--steps", type=int, help="of the solver, in both ways; by default the editor's own")
    parser.add_argument("--keep", action="store_true", help="write the solved targets to the disk; none may be there")
    options = parser.parse_args()
    if options.keep and (targets := cache_folder() / "targets").exists():
        raise SystemExit(f"{targets} may hold some of the targets: give CORRIGENDA_CACHE=another folder, without one")
    return options


def main() -> None:
    options = arguments()
    lm = load(options.model)
    facts = list(read_facts(options.facts, limit=options.count + MORE, on_error="skip"))
    if len(facts) <= MORE:
        raise SystemExit(f"{options.facts} has {len(facts)} facts: more than {MORE} are needed")
    facts, more = facts[:-MORE], facts[-MORE:]
    value = Memit().value
    value = dataclasses.replace(value, steps=options.steps or value.steps)
    memit = Memit(keep_targets=False, refuse_norm=1e9, value=value)
    every_step = dataclasses.replace(value, early_stop_loss=-1.0, confident_steps=None)
    thorough = dataclasses.replace(memit, value=every_step)
    memit.prepare(lm)
    held = memory_mb()
    dataclasses.replace(memit, value=dataclasses.replace(every_step, steps=2)).edit(lm, facts[:1])  # warm up

    seconds, edit = timed(lambda: dataclasses.replace(memit, keep_targets=options.keep).edit(lm, facts))
    peak = peak_memory_mb()
    costs = one_more(lm, memit, edit, more)
    turn_seconds, _ = timed(lambda: UltraEdit(refuse_norm=1e9).edit(lm, facts))
    compared = facts[: options.compared]
    thorough_seconds, _ = timed(lambda: thorough.edit(lm, compared))
    few = compared[: options.plain]
    plain_seconds, difference = plain_way(lm, few, thorough)
    timing = Timing(plain_seconds / len(few), thorough_seconds / len(compared), difference)
    result = {
        **about("many_facts", lm),
        "layers": list(memit.resolved_layers(lm)),
        "steps": value.steps,
        "contexts": 1 + sum(number for _, number in memit.prefix_lengths),
        "data": options.facts,
        "facts": len(facts),
        "compared_facts": len(compared),
        "plain_facts": len(few),
        **summary([timing], "_per_fact"),
        "seconds_per_fact": seconds / len(facts),
        "ratio_with_early_stop": timing.plain * len(facts) / seconds,
        **costs,
        "ultraedit_facts_per_second": len(facts) / turn_seconds,
        "memory_over_model_mb": None if held is None else peak - held,
        "peak_memory_mb": peak_memory_mb(),
    }
    del result["ratio_smallest"]  # there is one timing
    print_result(result)


if __name__ == "__main__":
    main()
