import math
from collections.abc import Callable
from typing import Any

import pytest
import tiny
from omegaconf import OmegaConf

from corrigenda import Fact, LanguageModel
from corrigenda.moments.text import Text
from editing import (
    FineTune,
    Grace,
    InContext,
    Memit,
    NoEdit,
    RandomUpdate,
    Rome,
    Suppress,
    Wise,
    erase_relation,
)
from editing.editor import prepare
from editing.locate_then_edit.targets import ValueSettings
from editing.memory_based.scoped import Scoped
from editing.memory_based.wise.unrelated import Unrelated
from eval import EvalSettings, SequentialSettings, evaluate
from eval.measure import measure
from jobs.shared import settings as of_jobs
from jobs.shared.settings import check, instantiate
from jobs.survey import LocateSettings
from jobs.trace import TraceSettings
from locate import CausalTrace, causal_trace
from locate.neurons.knowledge_neurons import knowledge_neurons
from locate.neurons.locator import Neurons

FACT = Fact("Paris", "{} is the capital of", "Rome", "France")
PLACES: dict[str, Any] = {"neurons": [(0, 1)]}

CLASSES: list[tuple[str, Callable[[], object], str]] = [
    # editors
    ("no prefix", lambda: Rome(prefixes=()), "Rome: prefixes=() must hold at least one text"),
    ("no prefix of MEMIT", lambda: Memit(prefixes=()), "Memit: prefixes=() must hold at least one text"),
    (
        "ends of a spread",
        lambda: Memit(ends_only=True, rule="root"),
        "Memit: rule='root' spreads a residual over layers",
    ),
    (
        "an agreement of nothing",
        lambda: Rome(homogeneous_keys=False, bare_agreement=0.5),
        "Rome: bare_agreement=0.5 holds the bare prompt's key against k*, which is not used",
    ),
    (
        "a divergence behind a gate",
        lambda: Scoped(value=ValueSettings(kl_factor=0.1)),
        "scoped: value.kl_factor=0.1 weighs what is to stay on value.kl_prompt, and the gate keeps",
    ),
    ("half a character", lambda: Rome(prefixes=("\udc80",)), "lone surrogate"),
    ("prefixes of no token", lambda: Rome(prefix_lengths=((0, 3),)), "(number 1 of number 1) must be at least 1"),
    ("triples", lambda: Rome(prefix_lengths=((1, 2, 3),)), "at most 2 entries, not 3"),  # type: ignore[arg-type]
    ("more digits than Python writes", lambda: Rome(seed=10**5000), "seed=(a value of the class int) must be below"),
    ("two slots", lambda: ValueSettings(kl_prompt="{} {}"), "must have exactly one '{}'"),
    ("no slot", lambda: ValueSettings(kl_prompt="is"), "kl_prompt='is' must have exactly one"),
    ("shards share entries", lambda: Wise(shards=3, rho=0.5), "Wise: 3 shards of rho=0.5 of the entries each share"),
    ("trimmed whole shards", lambda: Wise(keep=0.5), "Wise: keep=0.5 would trim shards that were learned whole"),
    ("too many contexts", lambda: Wise(prefixes=99), "Wise: 99 contexts cannot be drawn from a pool"),
    ("alpha alone", lambda: Wise(alpha=1.0), "Wise: give all of alpha, beta and gamma, or none"),
    ("same_form without facts", lambda: Unrelated(same_form=True), "Unrelated: unrelated.same_form asks for"),
    ("like a name", lambda: RandomUpdate(like="rome"), "like='rome' must be of the class Editor"),  # type: ignore[arg-type]
    ("a neuron of text", lambda: Suppress(neurons=[("1", 2)]), "a neuron is a pair (layer, number), not ('1', 2)"),
    ("half a neuron", lambda: Suppress(neurons=[(1, 2.5)]), "a neuron is a pair (layer, number), not (1, 2.5)"),
    ("neurons that are a number", lambda: Suppress(neurons=3), "neurons=3 must be"),  # type: ignore[arg-type]
    ("find that is a name", lambda: Suppress(find="x"), "find='x' must be a function"),  # type: ignore[arg-type]
    # texts, locators, protocols
    ("a text shorter than a sequence", lambda: Text(tokens=4, length=8), "Text: tokens=4 must be at least length=8"),
    ("severed and ffn", lambda: CausalTrace(site="ffn", severed="ffn"), "severed tracing restores block outputs"),
    ("perplexity of a window", lambda: EvalSettings(perplexity_windows=1), "perplexity_windows=1 must be 0"),
    ("a checkpoint at 0", lambda: SequentialSettings(checkpoints=(0, 5)), "(number 1) must be at least 1"),
]

COMMAND_LINE: list[tuple[type, dict[str, Any], str]] = [
    (of_jobs.RunSettings, {"seed": -1}, "seed=-1 must be at least 0"),
    (of_jobs.RunSettings, {"mode": "singel"}, "mode='singel' must be one of single, batch, sequential; did you mean"),
    (
        of_jobs.DataSettings,
        {"on_error": "skipp"},
        "data.on_error='skipp' must be one of raise, skip; did you mean skip?",
    ),
    (LocateSettings, {"picture": "png"}, "job.picture='png' must be the suffix of a file"),
    (LocateSettings, {"picture": "./../x"}, "must be the suffix of a file"),
    (TraceSettings, {"sites": []}, "job.sites=[] must name at least one site"),
    (TraceSettings, {"sites": ["ffn", "ffn"]}, "each once"),
    (TraceSettings, {"sites": ["mlp"]}, "must be one of block, ffn, attention"),
]

NO_FACTS: list[tuple[Any, str]] = [
    (FACT, "takes a list of facts, and got the one fact"),
    (FACT.to_dict(), "takes a list of facts, and got a mapping: write [Fact.from_dict(record)]"),
    ([FACT.to_dict()], "facts[0]={'subject': 'Paris'"),
    ([FACT, "Paris"], "facts[1]='Paris' must be a Fact, not str"),
    ("Paris", "takes a list of facts, and got 'Paris' (str)"),
    (None, "takes a list of facts, and got None"),
    ({FACT}, "(set): write list(...)"),
]

TAKE_FACTS: dict[str, Callable[[LanguageModel, Any], object]] = {
    "evaluate": evaluate,
    "measure": measure,
    "rome": Rome(layer=1).edit,
    "wise": Wise(layer=1).edit,
    "grace": Grace(layer=1).edit,
    "finetune": FineTune(layer=1).edit,
    "none": NoEdit().edit,
    "in_context": InContext().edit,
    "random": RandomUpdate().edit,
    "suppress": Suppress(neurons=[(0, 1)]).edit,
    "erase_relation": lambda lm, facts: erase_relation(lm, facts, lambda lm, fact: []),
}

ARGUMENTS: list[tuple[str, Callable[[LanguageModel], object], str]] = [
    ("generate -1", lambda lm: lm.generate("Paris is", -1), "generate: max_new_tokens=-1 must be at least 0"),
    ("generate true", lambda lm: lm.generate("Paris is", True), "max_new_tokens=True must be a whole number"),
    ("generate one of two", lambda lm: lm.generate(["a", "the"], [1]), "has 1 numbers for 2"),  # type: ignore[call-overload]
    ("settings as a mapping", lambda lm: evaluate(lm, [FACT], {"seed": 1}), "write EvalSettings(**settings)"),  # type: ignore[arg-type]
    ("the class of settings", lambda lm: measure(lm, [FACT], EvalSettings), "of the class EvalSettings"),  # type: ignore[arg-type]
    ("no settings but 0", lambda lm: measure(lm, [FACT], 0), "settings=0 must be of the class EvalSettings"),  # type: ignore[arg-type]
    ("held out nan", lambda lm: measure(lm, [FACT], None, None, math.nan), "held_out=nan must be of the class HeldOut"),  # type: ignore[arg-type]
    ("before of others", lambda lm: measure(lm, [FACT], None, []), "before has 0 measurements, and there are 1 facts"),
    ("trace a text", lambda lm: causal_trace(lm, "Paris is"), "fact='Paris is' must be a Fact, not str"),  # type: ignore[arg-type]
    ("trace a record", lambda lm: causal_trace(lm, FACT.to_dict()), "write Fact.from_dict(record)"),  # type: ignore[arg-type]
    ("trace to a number", lambda lm: causal_trace(lm, FACT, 3), "answer=3 must be a text or"),  # type: ignore[arg-type]
    ("trace in a window of text", lambda lm: causal_trace(lm, FACT, "top", window="3"), "window='3' must be a whole"),
    ("trace noise of a mapping", lambda lm: causal_trace(lm, FACT, noise={"samples": 2}), "of the class Noise"),
    ("neurons of a record", lambda lm: Neurons().find(lm, FACT.to_dict()), "must be a Fact, not dict"),  # type: ignore[arg-type]
    ("neurons of a number", lambda lm: knowledge_neurons(lm, 3), "fact=3 must be a Fact, not int"),  # type: ignore[arg-type]
    ("a token that is none", lambda lm: knowledge_neurons(lm, FACT, [99999]), "a token that tiny-llama does not have"),
    ("a token below 0", lambda lm: knowledge_neurons(lm, FACT, [-1]), "(number 1) must be at least 0"),
    ("steps of true", lambda lm: knowledge_neurons(lm, FACT, steps=True), "steps=True must be a whole number"),
    ("layers of true", lambda lm: knowledge_neurons(lm, FACT, layers=[True]), "(number 1) must be a whole number"),
    ("layers of one", lambda lm: knowledge_neurons(lm, FACT, layers=1), "layers=1 must be a list"),  # type: ignore[arg-type]
    ("max_tokens of nan", lambda lm: knowledge_neurons(lm, FACT, max_tokens=math.nan), "max_tokens=nan must be"),  # type: ignore[arg-type]
    ("a layer beyond the model", lambda lm: prepare(Rome(layer=9), lm), "layer 9: the model has 4 layers"),
]


lm = pytest.fixture(tiny.llama, scope="module")


def refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError, IndexError)) as caught:
        call()
    said = str(caught.value)
    assert message in said
    assert "\n" not in said
    assert len(said) < 400


@pytest.mark.parametrize(("make", "message"), [row[1:] for row in CLASSES], ids=[row[0] for row in CLASSES])
def test_settings(make: Callable[[], object], message: str) -> None:
    refused(make, message)


@pytest.mark.parametrize(("cls", "values", "message"), COMMAND_LINE)
def test_settings_of_the_command_line(cls: type, values: dict[str, Any], message: str) -> None:
    refused(lambda: check(cls, OmegaConf.create(values)), message)


@pytest.mark.parametrize("what", TAKE_FACTS)
@pytest.mark.parametrize(("given", "message"), NO_FACTS)
def test_what_is_no_list_of_facts(lm: LanguageModel, what: str, given: Any, message: str) -> None:
    refused(lambda: TAKE_FACTS[what](lm, given), message)


@pytest.mark.parametrize(("call", "message"), [row[1:] for row in ARGUMENTS], ids=[row[0] for row in ARGUMENTS])
def test_arguments(lm: LanguageModel, call: Callable[[LanguageModel], object], message: str) -> None:
    refused(lambda: call(lm), message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"_target_": "editing.Rome", "ridge": -1}, "Rome: ridge=-1 must be at least 0"),
        (
            {"_target_": "editing.Rome", "rigde": 1, "ridge": 0.1},
            "editing.Rome has no setting rigde; did you mean ridge?",
        ),
        ({"_target_": "editing.Saved", "run": "/no/such"}, "saved: /no/such holds no edits"),
        ({"_target_": "eval.EvalSettings", "harness_tasks": ["a", 3]}, "(number 2) must be a text"),
        (
            {"_target_": "locate.CausalTrace", "noise": {"_target_": "locate.Noise", "samples": 0}},
            "Noise: samples=0 must",
        ),
    ],
)
def test_what_a_configuration_makes(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        instantiate(OmegaConf.create(settings))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
