from collections import Counter
from typing import Any

import random_inputs
from hypothesis import HealthCheck, given
from hypothesis import settings as examples

MANY = examples(max_examples=1000, suppress_health_check=list(HealthCheck))


def test_settings() -> None:
    outcomes: Counter[bool] = Counter()

    @MANY
    @given(random_inputs.settings())
    def check(made: tuple[type, dict[str, Any]]) -> None:
        outcomes[random_inputs.check_settings(*made)] += 1

    check()
    assert min(outcomes[True], outcomes[False]) > 50  # both are met often


def test_records() -> None:
    outcomes: Counter[bool] = Counter()

    @MANY
    @given(random_inputs.records())
    def check(record: dict[str, Any]) -> None:
        outcomes[random_inputs.check_record(record)] += 1

    check()
    assert min(outcomes[True], outcomes[False]) > 50
