import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pytest
from malformed_parts import refused

from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, Count, NotNegative, Positive, Seed, Share, checked


@dataclass(frozen=True)
@checked
class Inner:
    rate: Positive = 0.5


@dataclass(frozen=True)
@checked
class Example:
    count: Count = 0
    steps: AtLeastOne = 1
    weight: NotNegative = 0.0
    share: Share = 0.5
    seed: Seed = 0
    layer: int | None = None
    name: str = ""
    flag: bool = False
    way: Literal["mean", "ties"] = "mean"
    pairs: tuple[tuple[int, int], ...] = ()
    words: tuple[str, ...] | None = None
    inner: Inner = field(default_factory=Inner)
    anything: Any = None


@dataclass(frozen=True)
@checked
class WithRules:
    low: Count = 0
    high: Count = 1

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


def test_defaults_and_good_values() -> None:
    made = Example(count=3, weight=2, layer=-1, pairs=[[5, 10], [10, 2]], words=["a"], anything=object())
    assert made.pairs == ((5, 10), (10, 2))
    assert made.words == ("a",)
    assert type(Example(layer=np.int64(4)).layer) is int
    assert type(Example(share=np.float32(0.25)).share) is float
    assert replace(made, way="ties").way == "ties"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": -1}, "Example: count=-1 must be at least 0"),
        ({"count": 1.5}, "count=1.5 must be a whole number"),
        ({"count": True}, "count=True must be a whole number"),
        ({"count": "1"}, "count='1' must be a whole number"),
        ({"count": None}, "count=None must be a whole number"),
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"weight": -0.1}, "weight=-0.1 must be at least 0"),
        ({"weight": math.nan}, "weight=nan must be a finite number"),
        ({"weight": math.inf}, "weight=inf must be a finite number"),
        ({"weight": "0.1"}, "weight='0.1' must be a number"),
        ({"share": 5}, "share=5 must be at most 1"),
        ({"seed": 2**32}, "seed=4294967296 must be below 4294967296"),
        ({"seed": "abc"}, "seed='abc' must be a whole number"),
        ({"layer": "1"}, "layer='1' must be a whole number"),
        ({"layer": True}, "layer=True must be a whole number"),
        ({"name": 3}, "name=3 must be a text"),
        ({"flag": 1}, "flag=1 must be true or false"),
        ({"way": "tie"}, "way='tie' must be one of mean, ties; did you mean ties?"),
        ({"pairs": [[1, 2, 3]]}, "pairs="),
        ({"pairs": [[1, "2"]]}, "(number 2 of number 1) must be a whole number"),
        ({"pairs": 4}, "pairs=4 must be a list"),
        ({"words": "ab"}, "words='ab' must be a list"),
        ({"inner": {"rate": 1.0}}, "inner={'rate': 1.0} must be of the class Inner"),
    ],
)
def test_bad_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Example(**values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_own_rules_come_after_and_see_good_values() -> None:
    refused(ValueError, "low is above high", WithRules, low=3)
    refused(SettingsError, "low='3' must be a whole number", WithRules, low="3")


def test_a_changed_copy_is_checked() -> None:
    refused(SettingsError, "Inner: rate=0 must be above 0", replace, Example().inner, rate=0)
