"""What the tests of editors share."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is kept on disk, apart from the user's, and from that of the other files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRIGENDA_CACHE", str(folder := tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And apart from that of the file's other tests."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
