from __future__ import annotations

from collections.abc import Iterator

import judge_stub
import pytest


@pytest.fixture
def stub() -> Iterator[judge_stub.Stub]:
    with judge_stub.running() as made:
        yield made
