import dataclasses
import re
from pathlib import Path
from typing import Any

import api_pages
import method_pages
import metric_table
import nbformat
import notebook_pages
import pytest
import run_notebooks
import yaml

from editing import EDITORS
from eval import METRICS


def rows(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables by their first cell."""
    found = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in page.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for cells in found}


def test_the_texts_are_of_the_methods_that_there_are() -> None:
    assert sorted(method_pages.texts()) == sorted(EDITORS)


@pytest.mark.parametrize("name", sorted(EDITORS))
def test_a_methods_text_says_when_and_what_it_costs(name: str) -> None:
    text = method_pages.texts()[name]
    assert "**Use it**" in text
    assert "**It costs**" in text


@pytest.mark.parametrize("name", sorted(name for name in EDITORS if EDITORS.base(name) == name))
def test_a_methods_page_has_every_setting_with_its_default(name: str) -> None:
    editor, page = EDITORS[name], method_pages.page(name)
    table = rows(page.split("## Settings")[1])
    for field in dataclasses.fields(editor):
        default, meaning = table[field.name][0], table[field.name][-1]
        assert meaning, f"no docstring of {editor.__qualname__} says what {field.name} is"
        if field.default is not dataclasses.MISSING and not dataclasses.is_dataclass(field.default):
            assert yaml.safe_load(default.strip("`")) == plain(field.default)
    assert "## What it computes" in page
    assert "## Source" in page


def plain(value: Any) -> Any:
    return [plain(part) for part in value] if isinstance(value, tuple) else value


def test_settings_of_an_object_are_named_with_a_dot() -> None:
    table = rows(method_pages.page("memit"))
    assert table["value.clamp_norm_factor"][0] == "`0.75`"  # MEMIT's, not that of the class ValueSettings alone
    assert table["layers"][0] == "`[]`"


def test_a_presets_page_has_what_differs() -> None:
    assert rows(method_pages.page("memit_blue"))["ends_only"] == ["`false`", "`true`"]
    assert rows(method_pages.page("ft_l"))["bound"] == ["`null`", "`0.0005`"]
    assert "Every setting is the same" in method_pages.page("r_rome")


def test_a_method_without_a_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_pages, "texts", dict)
    with pytest.raises(KeyError, match="no section '### `rome`'"):
        method_pages.page("rome")


def test_a_page_of_the_api_has_every_export() -> None:
    pages = api_pages.pages()
    assert "::: editing.locate_then_edit.rome.Rome" in pages["api/editing.md"]
    for package in api_pages.PACKAGES:
        module = __import__(package)
        assert [line.rpartition(".")[2] for line in pages[f"api/{package}.md"].splitlines() if line[:3] == ":::"] == (
            module.__all__
        )


def test_every_metric_is_in_the_glossary() -> None:
    assert list(rows(metric_table.table())) == list(METRICS)


def test_a_notebook_as_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = nbformat.v4.new_output
    code = nbformat.v4.new_code_cell("draw()")
    code.outputs = [output("stream", text="said\n"), output("display_data", {"image/png": "cG5n"})]
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A title"), code]), tmp_path / "n.ipynb"
    )
    monkeypatch.setattr(notebook_pages, "FOLDER", tmp_path)
    pages = notebook_pages.pages()
    assert notebook_pages.nav() == [{"A title": "notebooks/n.md"}]
    assert pages["notebooks/n-1-1.png"] == b"png"
    assert str(pages["notebooks/n.md"]).startswith("# A title")
    assert "```text\nsaid\n```\n\n![draw()](n-1-1.png)" in str(pages["notebooks/n.md"])


KEPT = sorted((Path(__file__).parents[3] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_a_notebook_is_kept_with_its_output_and_nothing_of_the_machine(path: Path) -> None:
    kept = nbformat.read(path, as_version=4)
    assert nbformat.writes(run_notebooks.stripped(nbformat.read(path, as_version=4))) == nbformat.writes(kept)
    shown = [output for cell in kept.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert all(len(output.get("data", {}).get("image/png", "")) < 400_000 for output in shown)  # 300 KB in base64
    words = nbformat.writes(kept)
    assert not re.search(r"/home/|/root/|/tmp/|/Users/|site-packages|Traceback", words)


def test_there_is_a_notebook_for_each_use() -> None:
    assert [path.stem for path in KEPT] == ["compare", "locate_and_edit", "look_inside"]
