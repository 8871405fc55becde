import pytest
import torch
from malformed_parts import refused

from locate.neurons.knowledge_neurons import KnowledgeNeuronsResult
from locate.neurons.refine import refine
from locate.question import Question


def prompts(*sets: set[int], model: str = "by hand") -> list[KnowledgeNeuronsResult]:
    """Results whose coarse sets are the given neurons, 0 to 9 in layer 3 and 10 to 19 in layer 4."""
    results = []
    for chosen in sets:
        values = torch.zeros(20)
        values[sorted(chosen)] = 1.0
        question = Question("x", (7, 8, 9), 3, (0, 1), "y", (4,), (2,))
        results.append(
            KnowledgeNeuronsResult(
                question, (3, 4), values.view(2, 10), values.view(2, 10), 0.5, "gradient", 1, "midpoint", model
            )
        )
    return results


def places(*numbers: int) -> tuple[tuple[int, int], ...]:
    return tuple((3 + number // 10, number % 10) for number in numbers)


FOUR = prompts({1, 2, 3, 15}, {1, 2, 4, 15}, {1, 2, 5}, {1, 6, 15})
"""Neuron 1 is in all four, 2 and 15 in three, the others in one."""


def test_more_than_the_share_of_the_prompts() -> None:
    assert refine(FOUR).neurons == places(1, 2, 15)  # more than 2.8 of 4
    assert refine(FOUR, share=0.75).neurons == places(1)  # more than 3
    assert refine(FOUR, share=0.0).neurons == places(1, 2, 15, 3, 4, 5, 6)
    found = refine(FOUR)
    assert found.counts == dict(zip(places(1, 2, 3, 15, 4, 5, 6), (4, 3, 1, 3, 1, 1, 1), strict=True))
    assert found.by_layer() == (2, 1)
    assert (found.share, found.threshold) == (0.7, 0.2)


def test_a_share_that_is_no_exact_number() -> None:
    """0.7 of 10 prompts are 7, and 7 is not more, whatever the floating-point product is; so for 0.1 of 3 * 10."""
    ten = prompts(*[{1, 2}] * 7, *[{1}] * 3)
    assert refine(ten, share=0.7).neurons == places(1)
    thirty = prompts(*[{1, 2}] * 3, *[{1}] * 27)
    assert refine(thirty, share=0.1).neurons == places(1)


def test_one_prompt_keeps_its_coarse_set() -> None:
    assert refine(FOUR[:1]).neurons == places(1, 2, 3, 15)


@pytest.mark.parametrize(("share", "taken"), [(0.9, 0.7), (0.0, 0.25), (0.7, 0.7)])
def test_adaptive_share_goes_down_and_up_and_stays(share: float, taken: float) -> None:
    """0.9 ... 0.75 keep one neuron (all four prompts), 0.70 ... 0.25 three (three of four), 0.20 ... 0 seven."""
    found = refine(FOUR, share=share, adaptive=True)
    assert found.share == pytest.approx(taken)
    assert found.neurons == places(1, 2, 15)


def test_adaptive_share_takes_the_nearest_where_none_is_right() -> None:
    two = prompts(set(range(10)), {0})
    assert refine(two, share=0.7, adaptive=True).neurons == places(0)
    assert refine(two, share=0.0, adaptive=True).neurons == places(0)
    # Nothing is shared at all: seven neurons at 0, which are two too many as none are two too few; the given share
    # stays where both are as bad.
    apart = prompts({0, 1, 2, 3}, {4, 5, 6})
    assert refine(apart, share=0.7, adaptive=True).neurons == ()
    assert refine(apart, share=0.7, adaptive=True).share == 0.7
    assert len(refine(prompts({0, 1, 2}, {4, 5, 6}), share=0.7, adaptive=True).neurons) == 6  # one too many


def test_a_prompt_that_nothing_speaks_for_has_no_say_in_the_top() -> None:
    results = prompts({1}, {1, 2})
    quiet = prompts({5})[0]
    quiet = KnowledgeNeuronsResult(**{**vars(quiet), "attributions": -quiet.attributions - 0.1})
    assert refine([*results, quiet]).top(2) == places(1, 2)
    assert refine([quiet]).top(1)[0] != places(5)[0]  # the only one there is


def test_bad_input() -> None:
    refused(ValueError, "no result", refine, [])
    for share in (-0.1, 1.0):
        refused(ValueError, r"\[0, 1\)", refine, FOUR, share=share)
    refused(ValueError, "different models", refine, [*FOUR, *prompts({1}, model="another")])
