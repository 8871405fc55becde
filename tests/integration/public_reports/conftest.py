"""One cache for what is kept on disk, apart from the user's."""

import pytest


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
