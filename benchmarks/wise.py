"""Editing one fact with `wise_whitened`: the plain way and ours, side by side; and what routing costs in generation.

The plain way is the textbook one: at each step a forward of the whole model over all rows, with all logits, the side
memory in a hook, and a backward from there. All settings are the same, the unrelated prompts' coefficients come from
the same store, nothing stops early, and the side memories are compared before the times are.

    python benchmarks/wise.py [--facts zsre.json] [--count 4]

The last line is a JSON object: `ratio` is plain / ours for one fact, `generation_ratio` the time to answer unrelated
prompts with the side memory applied over that without.
"""

import dataclasses
import random
import statistics
from functools import partial
from unittest import mock

import torch
from harness import about, in_turns, parser_of, print_result, relative, summary, timed
from torch import Tensor

from corrigenda import Fact, LanguageModel, SideMemoryEdit, load
from corrigenda.data import read_facts
from corrigenda.data.embedded import unrelated_prompts
from corrigenda.forward.generation import decode
from corrigenda.runs.environment import peak_memory_mb
from editing.memory_based.wise.coordinates import Coordinates
from editing.memory_based.wise.margins import Margins, prompt_scores
from editing.memory_based.wise.merging import subspace
from editing.memory_based.wise.unrelated import draw_evenly
from editing.memory_based.wise.wise import Wise
from editing.shared.contexts import contexts
from editing.shared.training_rows import target_rows, thinned


def plain(lm: LanguageModel, fact: Fact, wise: Wise, coordinates: Coordinates) -> Tensor:
    """V' - V for one fact with whole forwards; written for itself, without the code it is compared with."""
    layer = wise.resolved_layer(lm)
    margins = Margins.of(wise, coordinates.unit, coordinates.spread)
    draw = random.Random(f"{wise.seed} 0")
    chosen = ["", *draw.sample(contexts(lm, wise.prefix_lengths, wise.text, wise.seed)[1:], wise.prefixes)]
    prompts = [context + fact.statement for context in chosen]
    prompts += [thinned(fact, wise.thinning, draw) for _ in range(wise.thinned)]
    rows = [target_rows(lm, fact, prompt) for prompt in prompts]
    batch = lm.batch([ids for ids, _ in rows])
    values = lm.memory(layer).values
    theta = torch.zeros(values.shape, requires_grad=True)
    mask = subspace(wise.rho, wise.masks, wise.seed, 0, values.shape)
    optimiser = torch.optim.SGD([theta], lr=wise.lr * coordinates.unit**2 / (wise.rho * len(values)), momentum=0.9)
    draw = random.Random(f"{wise.seed} 0 steps")
    scores: list[Tensor] = []

    def hook(_module: object, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        coefficients = args[0] if coordinates.whitening is None else args[0] @ coordinates.whitening
        change = coefficients @ theta
        norms = (change.square().sum(-1) + 1e-30).sqrt()
        scores[:] = [norms[row, 1:n].mean() for row, (_, n) in enumerate(rows)]
        first = torch.arange(change.shape[1]) == 0
        return output + change.masked_fill(first[None, :, None], 0.0)

    handle = lm.architecture.values(layer).register_forward_hook(hook)
    for step in range(wise.steps + 1):
        with torch.set_grad_enabled(step < wise.steps):
            output = lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)
            logs = output.logits.log_softmax(-1)
            nll = torch.stack(
                [-logs[row, range(n - 1, len(ids) - 1), ids[n:]].mean() for row, (ids, n) in enumerate(rows)]
            )
            unrelated = prompt_scores(theta, draw_evenly(coordinates.unrelated, draw, wise.unrelated_batch))
            loss = nll.mean() + wise.weight * margins.loss(torch.stack(scores), unrelated) / coordinates.unit
        if step == wise.steps:
            break
        optimiser.zero_grad()
        loss.backward()
        assert theta.grad is not None
        theta.grad.mul_(mask)
        optimiser.step()
        with torch.no_grad():
            norm = theta.norm()
            if norm > wise.max_norm * coordinates.size:
                theta.mul_(wise.max_norm * coordinates.size / norm)
    handle.remove()
    return coordinates.delta(theta.detach())


def generation(lm: LanguageModel, edit: SideMemoryEdit, runs: int) -> dict[str, float]:
    """Seconds to answer unrelated prompts with and without the edit, alternately."""
    prompts = [lm.tokens(prompt) for prompt in unrelated_prompts()[:8]]
    # A threshold out of reach: these are prompts that the side memory leaves alone.
    quiet = dataclasses.replace(edit, epsilons=torch.full_like(edit.epsilons, 1e9))
    pairs = []
    for _ in range(runs + 1):
        bare, without = timed(lambda: decode(lm, prompts, 24, stop=lambda _: False))
        with quiet.applied(lm):
            routed, answered = timed(lambda: decode(lm, prompts, 24, stop=lambda _: False))
        assert answered == without
        pairs.append((bare, routed))
    pairs = pairs[1:]  # the first warms up
    return {
        "generation_seconds": statistics.median(pair[0] for pair in pairs),
        "generation_seconds_routed": statistics.median(pair[1] for pair in pairs),
        "generation_ratio": statistics.median(pair[1] / pair[0] for pair in pairs),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--facts", default="embedded", help="a data set as `data.path` takes it")
    parser.add_argument("--count", type=int, default=4, help="how many facts")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--runs", type=int, default=7, help="of the generation")
    options = parser.parse_args()
    lm = load(options.model)
    facts = list(read_facts(options.facts, limit=options.count, on_error="skip"))
    # Without the unrelated prompts that cost both ways the same: drawn anew for each fact, or for their scores.
    wise = Wise(steps=options.steps, stop=1e-9, other_subjects=0, hard_negatives=0)
    wise.prepare(lm)
    # What all edits share is loaded once, as in a sequence of edits.
    edit = dataclasses.replace(wise, steps=1).edit(lm, facts[:1])
    coordinates = Coordinates.of(lm, edit.layer, wise)

    def differ(expected: Tensor, result: SideMemoryEdit) -> float:
        nonlocal edit
        edit = result
        return relative(expected, result.deltas[0])

    with mock.patch.object(Coordinates, "of", return_value=coordinates):
        timings = [
            in_turns(
                partial(plain, lm, fact, wise, coordinates),
                partial(wise.edit, lm, [fact]),
                differ,
                1e-2,
                repr(fact.statement),
            )
            for fact in facts
        ]
    result = {
        **about("wise", lm),
        "layer": edit.layer,
        "steps": wise.steps,
        "rows": 1 + wise.prefixes + wise.thinned,
        "data": options.facts,
        "facts": len(facts),
        **summary(timings, "_per_fact"),
        **generation(lm, edit, options.runs),
        "peak_memory_mb": peak_memory_mb(),
    }
    print_result(result)


if __name__ == "__main__":
    main()
