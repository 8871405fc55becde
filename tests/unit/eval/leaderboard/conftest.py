"""A store of made-up runs, and submissions to it."""

import pytest
from made_runs import few_samples as few_samples
from made_runs import make_run as make_run
from made_runs import submission as submission


@pytest.fixture(autouse=True, scope="module")
def quick(few_samples: None) -> None:
    """What the tables compare by; `tests/unit/eval/statistics` tests intervals and tests themselves."""
