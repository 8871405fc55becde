import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from editing import EDITORS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # No address can be reached through this proxy: whatever is fetched fails.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Loaded(HTMLParser):
    """What a page loads: scripts, styles, fonts, pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        loaded = values.get("src") or (
            values.get("href") if tag == "link" and values.get("rel") != "canonical" else None
        )
        if loaded:
            self.addresses.append(loaded)


def test_every_method_and_notebook_has_its_page(site: Path) -> None:
    for name in EDITORS:
        assert (site / "methods" / name / "index.html").is_file()
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        assert (site / "notebooks" / notebook.stem / "index.html").is_file()


def test_the_api_comes_from_the_docstrings(site: Path) -> None:
    page = (site / "api" / "editing" / "index.html").read_text(encoding="utf-8")
    assert "Rank-One Model Editing" in page
    assert "homogeneous_keys" in page


def from_elsewhere(site: Path) -> dict[str, list[str]]:
    """The addresses that a site's pages load from other hosts, by page."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        parser = Loaded()
        parser.feed(path.read_text(encoding="utf-8"))
        if others := [address for address in parser.addresses if re.match(r"(https?:)?//", address)]:
            found[str(path.relative_to(site))] = others
    return found


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > len(EDITORS)
    assert from_elsewhere(site) == {}


def small(folder: Path, nav: list[str], **settings: Any) -> None:
    """Builds the pages in a folder with the project's settings, and those given in their place."""
    ours = {"INHERIT": str(ROOT / "mkdocs.yml"), "nav": nav, "hooks": [], "plugins": [], "docs_dir": "docs", **settings}
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(ours))
    build(load_config(str(folder / "mkdocs.yml"), strict=True, site_dir=str(folder / "site")))


def test_what_is_loaded_from_elsewhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n")
    small(tmp_path, ["index.md"], theme={"font": {"text": "Roboto"}})
    assert any("fonts.g" in address for address in from_elsewhere(tmp_path / "site")["index.html"])


@pytest.mark.parametrize(
    ("page", "nav"),
    [
        ("A page.", []),  # left out of the navigation
        ("A [link](nowhere.md).", ["other.md"]),
        ("A [link](index.md#nowhere).", ["other.md"]),
    ],
    ids=["left out", "dead link", "dead anchor"],
)
def test_what_ends_a_build(tmp_path: Path, page: str, nav: list[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n")
    (tmp_path / "docs" / "other.md").write_text(page)
    with pytest.raises(Abort, match="1 warnings in strict mode"):
        small(tmp_path, ["index.md", *nav])
