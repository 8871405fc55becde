from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromium
import pytest
from leaderboard_parts import only_board

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture
def page(written: Path) -> Iterator[Page]:
    """The page, opened from the file system in a real Chromium, with no network."""
    with chromium.opened(written / "leaderboard.html") as page:
        yield page


def column_of(page: Page, name: str) -> list[str]:
    """The editors in the order of the first table."""
    return page.locator(f"table[data-board='0'] tbody {name}").all_inner_texts()


def test_looks_ticks_and_width_in_chromium(page: Page, written: Path) -> None:
    """No two editors look the same, a tick at zero is zero, and no column is out of sight at 1,500 pixels."""
    script = (written / "leaderboard.html").read_text(encoding="utf-8")

    def function(begin: str, end: str) -> str:
        return script[script.index(begin) : script.index(end)]

    ticks = function("  function ticks(low, high) {", "  const W = 640")
    found = page.evaluate(f"() => {{ {ticks}; return [ticks(-0.3, 0.19), ticks(-0.07, 0.15), ticks(0, 1)]; }}")
    assert all(0 in each for each in found)
    assert max(len(str(at)) for each in found for at in each) <= 5
    look = function("  const COLOURS = 8;", "  const PAGE") + function("  const look =", "  function marker")
    looks = page.evaluate(f"() => {{ {look}; return [...Array(64).keys()].map((n) => JSON.stringify(look(n))); }}")
    assert len(set(looks)) == 64
    first = [json.loads(each) for each in looks[:8]]
    assert len({each["shape"] for each in first}) == len({each["colour"] for each in first}) == 8
    said = function("  const said =", "  const chance")
    asked = "[[' Paris', true], [null, false], [null, null]]"
    found = page.evaluate(f"() => {{ {said}; return {asked}.map((one) => afterwards(...one)); }}")
    assert found == ["“Paris”", "changed", "(not asked)"]  # the last one was not compared
    shown = function("  const share =", "  function ticks")
    found = page.evaluate(
        f"() => {{ const data = {{ shares: {{}} }}; {shown}; return [shown(0.37, ''), shown(30, null)]; }}"
    )
    assert found == ["0.370", "30"]  # a figure without a unit, and a number of edits
    page.set_viewport_size({"width": 1500, "height": 900})
    widths = page.evaluate("[...document.querySelectorAll('.scroll')].map((box) => [box.scrollWidth, box.clientWidth])")
    assert all(needed <= there for needed, there in widths)


def test_the_page_in_chromium(page: Page, written: Path) -> None:
    assert page.locator("section.board").count() == 2
    names = [text.split("\n")[0].strip() for text in column_of(page, "th.name")]
    page.screenshot(path=str(written / "page.png"), full_page=True)

    # A click on a heading sorts by it, best first; the next one turns it round; rows without a value stay last.
    heading = page.locator("table[data-board='0'] thead th").filter(has_text=re.compile("^ES"))
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    by_success = [text.split("\n")[0].strip() for text in column_of(page, "th.name")]
    assert by_success[:5] == ["in_context", "memit", "rome", "wise", "none"]
    assert set(by_success) == set(names)
    heading.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    turned = [text.split("\n")[0].strip() for text in column_of(page, "th.name")]
    assert turned[:5] == ["none", "wise", "rome", "memit", "in_context"]
    assert set(turned[5:]) == {"random", "finetune"}

    # The name of a row opens what it is made of.
    page.get_by_role("link", name="rome", exact=True).first.click()
    details = page.locator("details.row[open]")
    details.get_by_text("40 of 40 cases").wait_for()  # the page opens the row when the browser tells it, a little later
    assert details.count() == 1
    assert details.locator("tbody tr").filter(has_text="Subject 7 ").count() == 1
    search = details.get_by_role("searchbox")
    search.fill("subject 37 paris")
    assert details.get_by_text("1 of 40 cases").is_visible()
    case = details.locator("table.cases").last.locator("tbody tr")
    assert case.count() == 1
    text = case.inner_text()
    assert "Subject 37 lives in the city of" in text
    assert "Paris, France" in text  # what it said before
    search.fill("nowhere")
    assert details.get_by_text("0 of 40 cases").is_visible()
    details.get_by_text("1 pictures").click()
    assert details.get_by_role("link", name="trace.png").get_attribute("href").endswith("rome-0-0-single/trace.png")


def test_plots_and_themes_in_chromium(page: Page, written: Path) -> None:
    scatter = page.locator("figure[data-plot='scatter'][data-board='0']")
    assert scatter.locator("svg[role=img] :is(circle, polygon)").count() == 5  # each editor with a run
    assert "ES 90.0" in " ".join(scatter.locator("svg[role=img] title").all_text_contents())
    before = scatter.locator("svg[role=img]").inner_html()
    scatter.get_by_role("combobox").first.select_option("preservation")
    assert scatter.locator("svg[role=img]").inner_html() != before
    curves = page.locator("figure[data-plot='curve'] polyline")
    assert curves.count() == 2  # the two sequential runs
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.screenshot(path=str(written / "dark.png"), full_page=True)
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # the table scrolls, the page does not


def test_no_two_rows_have_one_label(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 40, settings={"layer": 3})
    make_run("rome", [False] * 40, name="younger", settings={"layer": 3, "option": None})
    labels = [row.label for row in only_board(tmp_path).rows if row.entry]
    assert sorted(labels) == ["rome (option=null)", "rome (option=unset)"]
    make_run("rome", [False] * 40, name="text", settings={"layer": "3"})
    labels = [row.label for row in only_board(tmp_path).rows if row.entry]
    assert len(set(labels)) == 3
    best = [row for row in only_board(tmp_path).rows if row.entry and row.cells["efficacy_success"].mark == "best"]
    assert len(best) == 1
