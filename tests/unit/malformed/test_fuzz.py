"""Random settings and facts, a few: none is accepted that is not as declared."""

from __future__ import annotations

from typing import Any

import random_inputs
from hypothesis import HealthCheck, given
from hypothesis import settings as examples

FEW = examples(max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@FEW
@given(random_inputs.settings())
def test_settings(made: tuple[type, dict[str, Any]]) -> None:
    random_inputs.check_settings(*made)


@FEW
@given(random_inputs.records())
def test_records(record: dict[str, Any]) -> None:
    random_inputs.check_record(record)
