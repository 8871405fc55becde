from collections.abc import Iterator

import pytest
import server_stub


@pytest.fixture
def stub() -> Iterator[server_stub.Stub]:
    with server_stub.running() as made:
        yield made
