"""What the tests of locators share."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept on disk, apart from the user's."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
