"""Random settings and records of facts (hypothesis), and what must hold of each that is accepted."""

import dataclasses
import json
import math
from typing import Any

from hypothesis import strategies as st
from settings_classes import CLASSES

from corrigenda import Fact
from corrigenda.errors import FactError, SettingsError

TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", " ", "{}", "{} is", "auto", "mean", "stack", "ffn", "\ud800", "a\n", "\u00a0", "x{}y{}", "nan"]
    ),
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.integers(-3, 40),
    st.floats(-1, 2),
    st.sampled_from([0, 1, -1, 2**32, 2**63, 10**400, -0.0, 1e308, math.nan, math.inf, True, False]),
)
SCALARS = st.one_of(NUMBERS, TEXTS, st.booleans(), st.none(), st.binary(max_size=3))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(TEXTS, inner, max_size=2)
    ),
    max_leaves=5,
)


@st.composite
def settings(draw: st.DrawFn) -> tuple[type, dict[str, Any]]:
    """A settings class with random values for some of its fields."""
    cls = draw(st.sampled_from(sorted(CLASSES, key=lambda each: each.__name__)))
    names = [each.name for each in dataclasses.fields(cls) if each.init]
    if not names:
        return cls, {}
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    return cls, {name: draw(st.one_of(NUMBERS, TEXTS, VALUES)) for name in chosen}


PROMPTS = st.one_of(TEXTS, st.sampled_from(["{} is in", "the city of {} is", "{} plays "]), VALUES)
TARGETS = st.one_of(TEXTS, st.just("Rome"), st.none(), VALUES)
PROBES = st.fixed_dictionaries(
    {"prompt": TEXTS, "answer": TEXTS}, optional={"aliases": st.lists(TEXTS, max_size=2), "group": TEXTS}
)


def lists(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(of, max_size=3), VALUES)


GOOD: dict[str, Any] = {
    "subject": "Paris",
    "prompt": "{} is in",
    "target_new": "Italy",
    "target_true": "France",
    "aliases": ["Italia"],
    "paraphrases": ["Where is {}? In"],
    "locality": [{"prompt": "Berlin is in", "answer": "Germany"}],
}
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "subject": st.one_of(TEXTS, VALUES),
    "prompt": PROMPTS,
    "target_new": TARGETS,
    "target_true": TARGETS,
    "id": st.one_of(TEXTS, VALUES),
    "relation": st.one_of(TEXTS, VALUES),
    "aliases": lists(TEXTS),
    "paraphrases": lists(PROMPTS),
    "neighbourhood": lists(PROMPTS),
    "locality": lists(PROBES),
    "portability": lists(PROBES),
    "generation": lists(PROMPTS),
    "negations": lists(PROMPTS),
    "reversals": lists(PROMPTS),
    "same_subject": lists(PROMPTS),
    "frames": lists(PROMPTS),
    "other": VALUES,
}


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A good record with random values in one to three of its fields."""
    chosen = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3, unique=True))
    return GOOD | {name: draw(FIELDS[name]) for name in chosen}


def check_settings(cls: type, values: dict[str, Any]) -> bool:
    """Random values are refused in a line, or what is made of them can be made again.

    Returns:
        whether they were accepted.
    """
    made: Any = None
    refused: ValueError | None = None
    try:
        made = cls(**CLASSES[cls] | values)
    except ValueError as error:
        refused = error
    if refused is not None:
        # A neuron that is no pair is refused by the rule on neurons, which other code shares.
        assert isinstance(refused, SettingsError) or "neuron" in str(refused), repr(refused)
        assert "\n" not in str(refused)
        assert 0 < len(str(refused)) < 600
        return False
    again = cls(**{each.name: getattr(made, each.name) for each in dataclasses.fields(made) if each.init})
    assert again == made
    dataclasses.asdict(made)
    return True


def check_record(record: dict[str, Any]) -> bool:
    """A random record is refused in a line, or is a fact that is written and read again as it is.

    Returns:
        whether it was accepted.
    """
    refused: FactError | None = None
    try:
        fact = Fact.from_dict(record)
    except FactError as error:
        refused = error
    if refused is not None:
        assert "\n" not in str(refused)
        assert refused.field
        return False
    written = json.dumps(fact.to_dict(), ensure_ascii=False).encode()  # as files have it
    again = Fact.from_dict(json.loads(written))
    assert again == fact
    assert fact.subject in fact.statement
    assert fact.statement == fact.statement.rstrip()
    for prompt in (*fact.paraphrases, *fact.neighbourhood, *fact.generation, *(p.prompt for p in fact.locality)):
        assert prompt.strip()
        assert "{}" not in prompt
    return True
