import dataclasses
import itertools
import random
from collections.abc import Iterable, Sequence

import pytest
import stand_ins
import tiny
import torch
from by_hooks import changed
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.forward.interventions import Add, Read, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.models.sites import Site
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import build_prompts
from editing.locate_then_edit.targets import (
    PADDING,
    PASS_TOKENS,
    ValueSettings,
    groups_of_like_length,
    old_values,
    solve_target_values,
)

PREFIXES = ("", "red green . ")
SETTINGS = ValueSettings(steps=6, lr=0.2, weight_decay=0.5, kl_factor=1.0, early_stop_loss=-1.0)
FACTS = stand_ins.FACTS[:2]


def plain(lm: LanguageModel, fact: Fact, layer: int, settings: ValueSettings) -> tuple[Tensor, Tensor]:
    """v0 and v* of a block's output the long way: whole forwards of each row by itself."""
    seen: list[Tensor] = []

    def run(text: str, target: list[int], delta: Tensor) -> Tensor:
        at = len(lm.tokenizer(text[: text.rindex(fact.subject) + len(fact.subject)])["input_ids"]) - 1
        ids = [*lm.tokenizer(text)["input_ids"], *target]

        def add(_entered: Tensor, state: Tensor) -> Tensor:
            seen.append(state[0, at].detach())
            mask = torch.zeros(1, len(ids), 1)
            mask[0, at] = 1
            return state + mask * delta

        with changed(lm.architecture.block(layer), add):
            return lm.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)

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


def test_layers_without_a_target(lm: LanguageModel) -> None:
    run = run_prompts(lm, build_prompts(lm, FACTS, PREFIXES, "{} is a", "subject"), [1, 3])
    with pytest.raises(ValueError, match="layer 3 is the last"):
        solve_target_values(lm, run, 3, SETTINGS, "block")
    for site in ("ffn", "block"):
        with pytest.raises(ValueError, match="not for layer 2"):
            solve_target_values(lm, run, 2, SETTINGS, site)


@pytest.mark.parametrize(("k", "lr", "weight_decay"), [(1, 2.0, 0.0), (3, 2.0, 0.0), (3, 3.0, 30.0)])
def test_a_fact_is_done_when_its_target_has_been_on_top_in_every_context(
    k: int, lr: float, weight_decay: float
) -> None:
    """Against plain forwards with the delta that each forward of the solve had.

    The decay pulls targets back, so that they are on top for two steps, then not, and then again.
    """
    lm, layer = tiny.build("llama"), 2
    shared = {"clamp_norm_factor": 1000.0, "early_stop_loss": -1.0}
    settings = ValueSettings(steps=1, lr=lr, weight_decay=weight_decay, **shared)
    facts = [Fact(subject, "in the city of {}", "Rome", "is") for subject in ("the Eiffel tower", "Big Ben")]
    prompts = build_prompts(lm, facts, PREFIXES, settings.kl_prompt, settings.kl_position)
    run = run_prompts(lm, prompts, [layer])
    old, steps = old_values(run, layer, "block"), 12
    rows = prompts.rewriting.nonzero()[:, 0]
    per_row = prompts.targets.split(prompts.predicts.sum(1).tolist())
    on_top: list[list[bool]] = []  # of each forward, of each fact
    for number in range(1, steps + 1):
        solved = solve_target_values(lm, run, layer, dataclasses.replace(settings, steps=number), "block")
        top = [True] * len(facts)
        for row in rows.tolist():
            fact = int(prompts.fact[row])
            delta = (solved.values - old)[fact]
            ids = prompts.batch.input_ids[row : row + 1, : int(prompts.batch.lengths[row])]
            with intervene(lm, Site("block", layer), Add(delta), prompts.subject[row : row + 1]):
                likely = lm.model(input_ids=ids).logits[0].argmax(1)
            at = prompts.predicts[row, : ids.shape[1]]
            top[fact] &= bool((likely[at] == per_row[row]).all())
        on_top.append(top)
    expected = []
    for fact in range(len(facts)):
        done = [n for n in range(k, steps + 1) if all(top[fact] for top in on_top[n - k : n])]
        expected.append(min(done, default=steps))
    assert min(expected) < steps
    fell = [on_top[n][0] and not on_top[n + 1][0] for n in range(steps - 1)]
    assert any(fell) is (weight_decay > 0)
    limited = dataclasses.replace(settings, steps=steps, confident_steps=k)
    found = solve_target_values(lm, run, layer, limited, "block")
    assert found.steps.tolist() == expected
    for fact, number in enumerate(expected):
        alone = solve_target_values(lm, run, layer, dataclasses.replace(settings, steps=number), "block")
        torch.testing.assert_close(found.values[fact], alone.values[fact], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gptj"])
def test_two_sites_solved_together(family: str) -> None:
    lm, layer = tiny.build(family, scale=8.0), 1
    settings = dataclasses.replace(SETTINGS, kl_factor=0.0, clamp_norm_factor=0.2)
    prompts = build_prompts(lm, FACTS[:1], PREFIXES, settings.kl_prompt, settings.kl_position)
    run = run_prompts(lm, prompts, [layer], [layer])
    found = solve_target_values(lm, run, layer, settings, "attention_and_ffn")
    ids = prompts.batch.input_ids[:2, : int(prompts.batch.lengths[:2].max())]
    per_row = prompts.targets.split(prompts.predicts.sum(1).tolist())
    old: list[Tensor] = []
    usual: list[float] = []  # the median norm of two contexts: what lies halfway between them
    for name in ("attention", "ffn"):
        each = []
        for row in range(2):
            with intervene(lm, Site(name, layer), Read(), prompts.subject[row : row + 1]) as seen:
                lm.model(input_ids=ids[row : row + 1, : int(prompts.batch.lengths[row])])
            each.append(seen.value[0].detach())
        old.append(each[0])
        usual.append(float(each[0].norm() + each[1].norm()) / 2)
    deltas = [torch.zeros(tiny.WIDTH, requires_grad=True) for _ in range(2)]
    optimiser = torch.optim.Adam(deltas, lr=settings.lr)
    for _ in range(settings.steps - 1):
        loss = torch.zeros(())
        for delta, start in zip(deltas, old, strict=True):
            loss = loss + settings.weight_decay * (delta.square().sum() + 1e-30).sqrt() / start.norm() ** 2
        for row in range(2):
            length = int(prompts.batch.lengths[row])
            at = prompts.subject[row : row + 1]
            with (
                intervene(lm, Site("attention", layer), Add(deltas[0]), at),
                intervene(lm, Site("ffn", layer), Add(deltas[1]), at),
            ):
                log_probs = lm.model(input_ids=ids[row : row + 1, :length]).logits[0].log_softmax(-1)
            wanted = log_probs[prompts.predicts[row, :length]].gather(1, per_row[row][:, None])
            loss = loss - wanted.mean() / 2
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            for delta, norm in zip(deltas, usual, strict=True):
                bound = settings.clamp_norm_factor * norm
                if delta.norm() > bound:
                    delta.mul_(bound / delta.norm())
    torch.testing.assert_close(found.values[0], old[1] + deltas[1].detach(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_grouped_so_that_passes_and_padding_cost_least(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.choice([1, 2, 40, 45, 120]) for _ in range(9)]
    ordered = sorted(lengths)

    def cost(groups: Iterable[Sequence[int]]) -> float:
        return sum(PASS_TOKENS + PADDING * sum(max(group) - length for length in group) for group in groups)

    def cut(at: Sequence[int]) -> list[list[int]]:
        ends = [0, *at, len(ordered)]
        return [ordered[begin:end] for begin, end in itertools.pairwise(ends)]

    ways = [at for n in range(9) for at in itertools.combinations(range(1, 9), n)]
    found = groups_of_like_length(lengths)
    assert sorted(place for group in found for place in group) == list(range(9))
    assert all(group == sorted(group) for group in found)
    assert cost([lengths[place] for place in group] for group in found) == pytest.approx(min(map(cost, map(cut, ways))))
    assert groups_of_like_length([3, 3, 3]) == [[0, 1, 2]]
    assert groups_of_like_length([1, 2, 3]) == [[0, 1, 2]]
    assert len(groups_of_like_length([1] * 4 + [200] * 4)) == 2


def test_facts_that_are_done_run_no_more(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_prompts(lm, build_prompts(lm, FACTS, PREFIXES, "{} is a", "subject"), [1])
    shared = {"lr": 0.1, "weight_decay": 0.0, "kl_factor": 0.0}
    thorough = solve_target_values(lm, run, 1, ValueSettings(steps=5, early_stop_loss=-1.0, **shared), "block")
    # A bound that the one with the smaller loss passes at the second forward, and the other never.
    first, second = sorted(range(2), key=lambda fact: thorough.losses[fact][1])
    bound = thorough.losses[first][1] + 1e-3
    assert min(thorough.losses[second]) > bound
    assert thorough.losses[first][0] > bound
    rows: list[int] = []
    plain = PartialForward.logits
    monkeypatch.setattr(
        PartialForward, "logits", lambda self, *args: (rows.append(len(self.start)), plain(self, *args))[1]
    )
    solved = solve_target_values(lm, run, 1, ValueSettings(steps=5, early_stop_loss=bound, **shared), "block")
    assert sorted(solved.steps.tolist()) == [2, 5]
    per_fact = len(PREFIXES) + 1  # and the prompt about what is to stay
    assert sum(rows) == 2 * 2 * per_fact + 3 * per_fact
    two = solve_target_values(lm, run, 1, ValueSettings(steps=2, early_stop_loss=-1.0, **shared), "block")
    for fact, alone in ((first, two), (second, thorough)):
        for name in ("values", "loss", "nll", "kl"):
            found, expected = getattr(solved, name)[fact], getattr(alone, name)[fact]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
