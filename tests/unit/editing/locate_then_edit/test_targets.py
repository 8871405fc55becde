"""Target values at a block's output, against plain whole forwards. (The FFN's output: the tests of ROME.)"""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from editing.locate_then_edit.prompts import build_prompts, run_prompts
from editing.locate_then_edit.targets import ValueSettings, old_values, solve_target_values

PREFIXES = ("", "red green . ")
SETTINGS = ValueSettings(steps=6, lr=0.2, weight_decay=0.5, kl_factor=1.0, early_stop_loss=-1.0)
FACTS = [
    Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris"),
    Fact("Danielle Darrieux", "the mother tongue of {} is", "the English language", "French"),
]


def plain(lm: LanguageModel, fact: Fact, layer: int, settings: ValueSettings) -> tuple[Tensor, Tensor]:
    """v0 and v* of a block's output the long way: whole forwards of each row by itself."""
    seen: list[Tensor] = []

    def run(text: str, target: list[int], delta: Tensor) -> Tensor:
        at = len(lm.tokenizer(text[: text.rindex(fact.subject) + len(fact.subject)])["input_ids"]) - 1
        ids = [*lm.tokenizer(text)["input_ids"], *target]

        def add(_module: object, _args: object, output: Tensor | tuple[Tensor, ...]) -> object:
            state = output[0] if isinstance(output, tuple) else output
            seen.append(state[0, at].detach())
            mask = torch.zeros(1, len(ids), 1)
            mask[0, at] = 1
            changed = state + mask * delta
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        handle = lm.architecture.block(layer).register_forward_hook(add)
        try:
            return lm.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        finally:
            handle.remove()

    target = lm.tokenizer(str(fact.target_new))["input_ids"]
    kept = f"{fact.subject}"  # "{} is a", cut at the subject
    delta = torch.zeros(tiny.WIDTH, requires_grad=True)
    optimiser = torch.optim.Adam([delta], lr=settings.lr)
    run(fact.statement, [], torch.zeros(tiny.WIDTH))
    old, before = seen[0], run(kept, [], torch.zeros(tiny.WIDTH))[-1].detach()
    for _ in range(settings.steps - 1):
        loss = settings.weight_decay * (delta.square().sum() + 1e-30).sqrt() / old.norm() ** 2
        for prefix in PREFIXES:
            log_probs = run(prefix + fact.statement, target, delta)
            for number, token in enumerate(reversed(target)):
                loss = loss - log_probs[-2 - number, token] / (len(PREFIXES) * len(target))
        now = run(kept, [], delta)[-1]
        loss = loss + settings.kl_factor * (now.exp() * (now - before)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        bound = settings.clamp_norm_factor * old.norm()
        with torch.no_grad():
            if delta.norm() > bound:
                delta.mul_(bound / delta.norm())
    return old, old + delta.detach()


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gemma2", "gpt_neox", "olmo2"])
def test_block_output(family: str) -> None:
    lm = tiny.build(family, scale=8.0)
    run = run_prompts(lm, build_prompts(lm, FACTS, PREFIXES, "{} is a", "subject"), [0, 1])
    solved = solve_target_values(lm, run, 1, SETTINGS, "block")
    for number, fact in enumerate(FACTS):
        old, value = plain(lm, fact, 1, SETTINGS)
        torch.testing.assert_close(old_values(run, 1, "block")[number], old, atol=1e-3, rtol=1e-3)
        assert float((solved.values[number] - value).norm() / (value - old).norm()) < 1e-2
        assert float((value - old).norm() / old.norm()) > 0.01


def test_layers_without_a_target() -> None:
    lm = tiny.build("llama")
    run = run_prompts(lm, build_prompts(lm, FACTS, PREFIXES, "{} is a", "subject"), [1, 3])
    with pytest.raises(ValueError, match="layer 3 is the last"):
        solve_target_values(lm, run, 3, SETTINGS, "block")
    for site in ("ffn", "block"):
        with pytest.raises(ValueError, match="not for layer 2"):
            solve_target_values(lm, run, 2, SETTINGS, site)
