"""A model is used by one thread at a time: the others wait, and each gets what it would get alone."""

import importlib
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tiny
import torch

from corrigenda import Fact, LanguageModel
from corrigenda.moments.text import Text
from editing import Rome, ValueSettings
from eval import EvalSettings, evaluate
from locate import CausalTrace, Noise

PROMPTS = ["Paris is the city of", "the Eiffel tower is in", "Rome is in the", "the capital of France is"]
FACTS = [Fact("Paris", "the city of {} is in", "Rome"), Fact("Eiffel tower", "the {} is in", "Italy")]
ROME = Rome(
    layer=1,
    prefixes=("", "red green . "),
    value=ValueSettings(steps=6),
    text=Text(tokens=512, length=16),
    flag_norm=1e9,
    refuse_norm=1e9,
)


lm = pytest.fixture(tiny.steep)


def at_once(function: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(function, items))


def edited(lm: LanguageModel, fact: Fact) -> torch.Tensor:
    return ROME.edit(lm, [fact]).delta(1)


def test_answers_edits_measures_and_traces_of_threads_are_those_of_one(lm: LanguageModel) -> None:
    lm.fingerprint  # noqa: B018 - taken before the threads start
    alone = [lm.generate(prompt, 6) for prompt in PROMPTS]
    deltas = [edited(lm, fact) for fact in FACTS]
    settings = EvalSettings(perplexity_windows=0, generate=False)
    figures = [evaluate(lm, [fact], settings).cases[0].after.values for fact in FACTS]
    trace = CausalTrace(noise=Noise(samples=2, sigma=1.0))
    scores = [trace.find(lm, fact, "top").scores for fact in FACTS]

    assert at_once(lambda prompt: lm.generate(prompt, 6), PROMPTS * 45) == alone * 45
    for found, wanted in zip(at_once(lambda fact: edited(lm, fact), FACTS * 2), deltas * 2, strict=True):
        assert torch.equal(found, wanted)
    assert at_once(lambda fact: evaluate(lm, [fact], settings).cases[0].after.values, FACTS * 2) == figures * 2
    for found, wanted in zip(at_once(lambda fact: trace.find(lm, fact, "top").scores, FACTS), scores, strict=True):
        assert torch.equal(found, wanted)


def test_applied_in_two_threads(lm: LanguageModel) -> None:
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    edits = [ROME.edit(lm, [fact]) for fact in FACTS]
    alone = []
    for edit in edits:
        with edit.applied(lm):
            alone.append(lm.generate(PROMPTS[0], 6))

    def inside(number: int) -> str:
        with edits[number].applied(lm):
            return lm.generate(PROMPTS[0], 6)

    assert at_once(inside, [0, 1] * 10) == alone * 10
    assert all(torch.equal(before[name], tensor) for name, tensor in lm.model.state_dict().items())


def test_other_threads_wait_for_the_end_of_the_block(lm: LanguageModel) -> None:
    edit = ROME.edit(lm, [FACTS[0]])
    said = list[str]()
    other = threading.Thread(target=lambda: said.append(lm.generate(PROMPTS[0], 6)))
    alone = lm.generate(PROMPTS[0], 6)
    with edit.applied(lm):
        other.start()
        other.join(0.2)
        assert not said
        edited = lm.generate(PROMPTS[0], 6)  # the thread itself goes on
    other.join()
    assert said == [alone]
    assert edited != alone


LIGHT = {"check", "hiding", "resolved_layer", "resolved_layers", "projection", "sequences"}
"""Of what takes a model: what runs no forward, or only from inside what holds the lock."""


def public(package: str) -> dict[str, Any]:
    """What a package offers that takes a model, by name."""
    found: dict[str, Any] = {}
    module = importlib.import_module(package)
    for name in module.__all__:
        offered = getattr(module, name)
        if inspect.isclass(offered) and not getattr(offered, "_is_protocol", False):
            found |= {
                f"{name}.{key}": value for key, value in vars(offered).items() if key[0] != "_" and key not in LIGHT
            }
        found[name] = offered
    return {
        name: function
        for name, function in found.items()
        if inspect.isfunction(function) and "lm" in inspect.signature(function).parameters
    }


class WaitedError(Exception):
    pass


@pytest.mark.parametrize("package", ["locate", "editing", "eval"])
def test_whatever_takes_a_model_holds_its_lock(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build("llama")

    def enter(lock: Any) -> None:
        raise WaitedError

    monkeypatch.setattr(type(lm.alone), "__enter__", enter)
    functions = public(package)
    assert functions
    for name, function in functions.items():
        given = {key: None for key in inspect.signature(function).parameters if key not in ("lm", "args", "kwargs")}
        try:
            function(**given, lm=lm)
        except WaitedError:
            continue
        pytest.fail(name)
