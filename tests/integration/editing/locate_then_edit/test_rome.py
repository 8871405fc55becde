"""ROME: against the authors' values, against plain whole forwards, and its guards."""

import dataclasses

import pytest
import tiny
import torch
from rome_parts import FACTS, ROME, SETTINGS, build, difference, given_moment, plain, solve

moment = pytest.fixture(given_moment)


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_facts_that_stop_early_leave_the_others_alone(family: str) -> None:
    lm = build(family)
    losses = solve(lm, FACTS, dataclasses.replace(ROME, value=dataclasses.replace(SETTINGS, steps=4)))[1].loss
    threshold = float(losses.sort().values[:2].mean())  # one fact is below it after four steps
    stopping = dataclasses.replace(ROME, value=dataclasses.replace(SETTINGS, steps=10, early_stop_loss=threshold))
    alone = [solve(lm, [fact], stopping)[1] for fact in FACTS]
    values = solve(lm, FACTS, stopping)[1]
    steps = torch.cat([single.steps for single in alone])
    assert steps.min() <= 4 < steps.max()
    assert values.steps.tolist() == steps.tolist()
    assert difference(values.values, torch.cat([single.values for single in alone])) < 1e-3
    for name in ("loss", "nll", "kl"):
        expected = torch.cat([getattr(single, name) for single in alone])
        torch.testing.assert_close(getattr(values, name), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_batch_equals_one_by_one(family: str) -> None:
    lm = build(family)
    alone = [solve(lm, [fact]) for fact in FACTS]
    rewrites, values = solve(lm, FACTS)
    assert difference(rewrites.mean_keys, torch.cat([single.mean_keys for single, _ in alone])) < 1e-3
    assert difference(rewrites.bare_keys, torch.cat([single.bare_keys for single, _ in alone])) < 1e-3
    assert difference(rewrites.old_values, torch.cat([single.old_values for single, _ in alone])) < 1e-3
    assert difference(values.values, torch.cat([single.values for _, single in alone])) < 1e-3
    unsolved = solve(lm, FACTS, dataclasses.replace(ROME, value=dataclasses.replace(SETTINGS, steps=1)))[1]
    assert (values.values - rewrites.old_values).norm(dim=1).min() > 1
    assert (unsolved.nll - values.nll).min() > 0.02


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_solution_equals_that_of_whole_forwards(family: str) -> None:
    lm = build(family)
    rewrites, values = solve(lm, FACTS[1:2])
    key, value = plain(lm, FACTS[1], ROME)
    assert difference(rewrites.mean_keys[0], key) < 1e-3
    assert difference(values.values[0], value) < 1e-3
