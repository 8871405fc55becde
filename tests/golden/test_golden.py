"""Every figure is what it was: editors, locators, metrics, knowledge bases, exports, configuration, public names.

The values on disk were made by this project's own code, so they say nothing of what is right: only that a change which
is to change nothing changes nothing. A deliberate one writes its file anew, with the reason (`tests/golden`).
What stands beside them with values of other origin, of the real model: ROME, MEMIT and tracing by the authors' code in
tests/real/editing/locate_then_edit/test_rome.py and test_memit.py, and in
tests/real/locate/tracing/test_causal_trace.py.
"""

from pathlib import Path

import pytest
from golden import store
from golden.all import MAKERS, made


@pytest.mark.parametrize("name", MAKERS)
def test_values_are_what_they_were(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if found := store.differences(name, made(name)):
        more = f"\nand {len(found) - 20} more" if len(found) > 20 else ""
        pytest.fail("\n".join(found[:20]) + f"{more}\nIf that is meant: {store.command(name)}", pytrace=False)


def test_every_file_has_its_maker_and_says_why_it_changed() -> None:
    assert {path.relative_to(store.FOLDER).with_suffix("").as_posix() for path in store.FOLDER.rglob("*.json")} == {
        *MAKERS
    }
    assert all(change["why"].strip() for name in MAKERS for change in store.read(name)["changes"])


def test_differences_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store, "FOLDER", tmp_path / "tests" / "golden" / "values")
    was = {"a": 1.0, "b": [1, 2.5], "c": "text", "d": True, "e": None, "same": 3.0}
    assert "make it: python tests/golden --write some" in store.differences("some", was)[0]
    with pytest.raises(ValueError, match="say why"):
        store.write("some", was, " ")
    store.write("some", was, "the first")
    assert store.differences("some", was) == []
    now = {"a": 1 + 2 * store.TOLERANCE, "b": [1, -2.5], "c": "Text", "d": 1, "new": 0, "same": 3 + store.TOLERANCE}
    assert [line.split(": ")[1] for line in store.differences("some", now)] == ["a", "b", "c", "d", "e", "new"]
    assert store.differences("some", now)[1] == "tests/golden/values/some.json: b: was [1, 2.5], is [1, -2.5]"
    store.write("some", now, "the second")
    assert [change["why"] for change in store.read("some")["changes"]] == ["the first", "the second"]
