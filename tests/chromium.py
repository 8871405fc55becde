"""A real Chromium; a page of this project in it, opened from the file system with no network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@contextmanager
def launched() -> Iterator[Browser]:
    """The browser; where there is none the test is skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
    places = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome", "chrome")]
    executable = next((place for place in places if place), None)
    with playwright.sync_playwright() as driver:
        if executable is None and not Path(driver.chromium.executable_path).exists():
            pytest.skip("needs a Chromium (playwright install chromium, or the system's package)")
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(path: Path, width: int = 1400) -> Iterator[Page]:
    """The page; when the block ends no script has failed, and nothing was asked for beside files."""
    with launched() as browser:
        page = browser.new_context(viewport={"width": width, "height": 1000}, offline=True).new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
        page.goto(path.as_uri())
        yield page
        assert not problems
