"""What the quick tests share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Nothing of theirs has to survive a loss of power, which is all that `os.fsync` is for.

    A run waits for the disk after each case: a store of five made-up runs 200 times. That whole lines are written and
    that kills lose nothing is tested in tests/integration, by processes that do wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
