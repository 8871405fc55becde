"""What the tests of moments share: a model, a cache of their own, and small batches that are often written down."""

from pathlib import Path

import pytest

from corrigenda.moments import second_moment, sums


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(second_moment, "ROWS", 4)
    monkeypatch.setattr(sums, "CHECKPOINT", 3)
    return tmp_path / "cache"
