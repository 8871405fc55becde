"""What the tests of ROME share."""

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import tiny
import torch
from by_hooks import changed
from torch import Tensor

import editing.locate_then_edit.moments
from corrigenda import Fact, LanguageModel
from corrigenda.moments.second_moment import SecondMoment
from corrigenda.moments.text import Text
from editing import Rome, ValueSettings
from editing.locate_then_edit.keys import bare_keys, mean_keys
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import Prompts, build_prompts
from editing.locate_then_edit.targets import TargetValues, old_values, solve_target_values

LAYER = 1
PREFIXES = ("", "red green . ", "the river is in the north . ")
SETTINGS = ValueSettings(steps=8, lr=0.2, weight_decay=0.02, early_stop_loss=-1.0)
FACTS = [
    Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris"),
    Fact("Danielle Darrieux", "the mother tongue of {} is", "the English language", "French"),
    Fact("Big Ben", "in the city with {} on the river Thomas plays the", "guitar", "piano"),
]
ROME = Rome(bare_agreement=0.0, layer=LAYER, prefixes=PREFIXES, value=SETTINGS, flag_norm=1e9, refuse_norm=1e9)


def build(family: str = "llama") -> LanguageModel:
    """A random model with weights large enough that an FFN's output changes what is predicted."""
    return tiny.build(family, scale=8.0)


def some_moment(lm: LanguageModel, layer: int) -> Tensor:
    """A well-conditioned second moment: of random coefficients of which some vary together."""
    draw = torch.Generator().manual_seed(5)
    d_ffn = lm.memory(layer).d_ffn
    mixing = torch.eye(d_ffn) + torch.randn(d_ffn, d_ffn, generator=draw) / d_ffn**0.5
    keys = torch.randn(4 * d_ffn, d_ffn, generator=draw, dtype=torch.float64) @ mixing.double()
    return keys.T @ keys / len(keys)


Patch = Callable[[Tensor | None], None]


def given_moment(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """For a fixture: sets the second moment that ROME uses; here at once to `some_moment` of whatever model it is."""

    def patch(matrix: Tensor | None) -> None:
        def given(lm: LanguageModel, layers: Sequence[int], text: Text) -> dict[int, SecondMoment]:
            found = {layer: some_moment(lm, layer) if matrix is None else matrix for layer in layers}
            return {layer: SecondMoment(one, 1000, layer, text) for layer, one in found.items()}

        monkeypatch.setattr(editing.locate_then_edit.moments, "second_moments", given)

    patch(None)
    return patch


@dataclasses.dataclass(frozen=True)
class Rewrites:
    """What one run of some facts' prompts gives at ROME's layer."""

    prompts: Prompts
    mean_keys: Tensor
    bare_keys: Tensor
    old_values: Tensor


def solve(lm: LanguageModel, facts: Sequence[Fact], rome: Rome = ROME) -> tuple[Rewrites, TargetValues]:
    assert rome.layer is not None
    assert rome.prefixes is not None
    layer = rome.layer
    prompts = build_prompts(
        lm, facts, rome.prefixes, rome.value.kl_prompt, rome.value.kl_position, position=rome.position
    )
    run = run_prompts(lm, prompts, [layer])
    rewrites = Rewrites(prompts, mean_keys(run, layer), bare_keys(run, layer), old_values(run, layer))
    return rewrites, solve_target_values(lm, run, layer, rome.value)


def difference(left: Tensor, right: Tensor) -> float:
    """The largest relative difference of two rows."""
    return float(((left - right).norm(dim=-1) / right.norm(dim=-1)).max())


def cosine(left: Tensor, right: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(left.flatten(), right.flatten(), dim=0))


def plain(lm: LanguageModel, fact: Fact, rome: Rome) -> tuple[Tensor, Tensor]:
    """k* and v* the long way: the whole model on each row by itself, every step, and autograd."""
    assert rome.layer is not None
    assert rome.prefixes is not None
    settings = rome.value
    module = lm.architecture.values(rome.layer)
    seen: dict[str, Tensor] = {}

    def run(text: str, at: int, target: Sequence[int], delta: Tensor) -> Tensor:
        ids = lm.tokenizer(text)["input_ids"] + list(target)

        def add(entered: Tensor, output: Tensor) -> Tensor:
            coefficients, flat = entered.reshape(len(ids), -1), output.reshape(len(ids), -1)
            seen["key"], seen["value"] = coefficients[at].detach(), flat[at].detach()
            mask = torch.zeros(len(ids), 1)
            mask[at] = 1
            return (flat + mask * delta).view_as(output)

        with changed(module, add):
            return lm.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)

    def at(prompt: str) -> int:
        if rome.position == "relation":
            return len(lm.tokenizer(prompt)["input_ids"]) - 1
        return len(lm.tokenizer(prompt[: prompt.rindex(fact.subject) + len(fact.subject)])["input_ids"]) - 1

    assert fact.target_new is not None
    target = lm.tokenizer(fact.target_new)["input_ids"]
    rows = [prefix + fact.statement for prefix in rome.prefixes]
    kept = settings.kl_prompt.replace("{}", fact.subject)
    zero = torch.zeros(lm.memory(rome.layer).d_model)
    keys, olds = [], []
    for row in rows:
        run(row, at(row), [], zero)
        keys.append(seen["key"])
        olds.append(seen["value"])
    old = olds[0]
    place = at(kept) if settings.kl_position == "subject" else -1
    before = run(kept, at(kept), [], zero)[place].detach()
    delta = zero.clone().requires_grad_()
    optimiser = torch.optim.Adam([delta], lr=settings.lr)
    for _ in range(settings.steps - 1):
        loss = settings.weight_decay * (delta.square().sum() + 1e-30).sqrt() / old.norm() ** 2
        for row in rows:
            log_probs = run(row, at(row), target, delta)
            for number, token in enumerate(reversed(target)):
                loss = loss - log_probs[-2 - number, token] / (len(rows) * len(target))
        now = run(kept, at(kept), [], delta)[place]
        loss = loss + settings.kl_factor * (now.exp() * (now - before)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        norms = sorted(float(one.norm()) for one in olds)
        bound = settings.clamp_norm_factor * (norms[(len(norms) - 1) // 2] + norms[len(norms) // 2]) / 2
        with torch.no_grad():
            if delta.norm() > bound:
                delta.mul_(bound / delta.norm())
    return torch.stack(keys).mean(0), old + delta.detach()
