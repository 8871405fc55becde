"""Intervals and tests are drawn from few samples here. `statistics/`, which tests them, draws what is shipped."""

import pytest
from made_runs import few_samples as few_samples


@pytest.fixture(autouse=True, scope="module")
def quick(few_samples: None) -> None:
    """What tables and summaries are made with."""
