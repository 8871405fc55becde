"""The statistics as they are shipped."""

import pytest


@pytest.fixture(scope="module")
def few_samples() -> None:
    """Not here."""
