from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chromium
import pytest

from corrigenda import Fact
from corrigenda.knowledge.plan import Plan
from eval import Case
from eval.measurement import Measurement
from eval.records import ScoredPrompt
from eval.verification.page import page as page_of
from eval.verification.report import report_of
from eval.verification.verify import Verified

if TYPE_CHECKING:
    from playwright.sync_api import Page


def verified(number: int, now: str, elsewhere: str = " London") -> Verified:
    fact = Fact(f"Tower {number}", "{} is in", "Rome", "Paris", id=f"fact-{number}", paraphrases=("Where is {}? In",))

    def measured(answer: str, elsewhere: str = " London") -> Measurement:
        kept = elsewhere == " London"
        prompts = [ScoredPrompt(fact.statement, answer=answer, strict=answer == "Rome")]
        others = [ScoredPrompt(fact.paraphrases[0], answer=answer, strict=answer == "Rome")]
        near = [ScoredPrompt("Big Ben is in", answer=elsewhere, preserved=kept)]
        values = {"free_generation_strict": float(answer == "Rome"), "preservation": float(kept)}
        return Measurement({"prompt": prompts, "paraphrases": others, "neighbourhood": near}, values)

    return Verified(Case(fact, measured("<Paris> & so"), measured(now, elsewhere)))


@pytest.fixture
def report() -> dict[str, Any]:
    found = [verified(0, "Rome"), verified(1, "Oslo"), verified(10, "Rome", " Rome")]
    superseded = Fact("Tower 1", "{} is in", "Bern", id="earlier")
    gone = Fact("Old", "{} was in", "Bern", id="gone")
    facts = [superseded, *(one.case.fact for one in found)]
    last = {"facts": [{"id": "fact-1", "holds": True}]}
    plan = Plan((facts[1],), (), (gone,), tuple(facts[2:]))
    said = [{"alike": []}, {"alike": ["fact-10"]}, {"alike": ["fact-1"]}]
    made = report_of(facts, found, said, plan, last)
    rules = [{"passed": False, "said": "efficacy 66.7"}]
    return made | {"about": "made by a test", "rules": rules, "accepted": False}


@pytest.fixture
def page(report: dict[str, Any], tmp_path: Path) -> Iterator[Page]:
    """The page, opened from the file system in a real Chromium, with no network."""
    path = tmp_path / "report.html"
    path.write_text(page_of(report), encoding="utf-8")
    with chromium.opened(path) as opened:
        yield opened


def shown(page: Page) -> list[str]:
    rows = page.locator("#facts tbody tr:visible")
    return [row.get_attribute("id") or "" for row in rows.all()]


def test_what_a_report_says(report: dict[str, Any]) -> None:
    assert (report["n_facts"], report["n_in_force"], report["n_holding"]) == (4, 3, 2)
    assert report["collisions"] == [
        {"fact": "earlier", "what": "superseded by", "other": "fact-1"},
        {"fact": "fact-1", "what": "has nearly the key of", "other": "fact-10"},
    ]
    assert report["since"]["lost"] == ["fact-1"]
    assert report["since"]["gained"] == []
    assert report["since"]["removed"] == [{"id": "gone", "statement": "Old was in", "target_new": "Bern"}]
    assert report["metrics"]["free_generation_strict"]["after"] == pytest.approx(2 / 3)
    row = report["facts"][3]
    assert (row["now"], row["before"], row["next_to_it"]) == ("Rome", "<Paris> & so", 1)
    assert row["changed_next_to_it"][0]["now"] == " Rome"


def test_the_report_in_chromium(page: Page, tmp_path: Path) -> None:
    ids = ["fact-earlier", "fact-fact-0", "fact-fact-1", "fact-fact-10"]
    assert page.title() == "Corrigenda verification report: not accepted, 2 of 3 facts hold"
    assert page.locator("#rules").get_by_text("not accepted").is_visible()
    assert page.locator("#refused").get_by_text("put in place all the same").is_visible()
    assert "<Paris> & so" in page.locator("#fact-fact-0").inner_text()  # as it was said
    assert shown(page) == ids

    # A click on a heading sorts, the next one turns it round.
    heading = page.locator("#facts th").filter(has_text="changed next to it")
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert shown(page)[0] == "fact-fact-10"
    page.locator("#facts th").filter(has_text="holds").get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "none"
    assert shown(page) == ["fact-fact-0", "fact-fact-10", "fact-fact-1", "fact-earlier"]

    # All words of a search, and kinds of facts.
    search = page.get_by_role("searchbox")
    search.fill("OSLO tower")
    assert shown(page) == ["fact-fact-1"]
    assert page.get_by_text("1 of 4 facts").is_visible()
    search.fill("nowhere")
    assert page.get_by_text("0 of 4 facts").is_visible()
    search.fill("")
    for kind, expected in (("touched", ["fact-fact-10"]), ("left-out", ["fact-earlier"]), ("new", ["fact-fact-0"])):
        page.get_by_role("combobox").select_option(kind)
        assert shown(page) == expected
    page.get_by_role("combobox").select_option("")
    page.locator("#fact-fact-10 summary").last.click()
    assert page.locator("#fact-fact-10").get_by_text("before: London").is_visible()
    assert "fact-1" in page.locator("#since").inner_text()


def test_light_and_dark_and_narrow_in_chromium(page: Page, tmp_path: Path) -> None:
    def ground() -> str:
        found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    page.emulate_media(color_scheme="light")
    light = ground()
    page.emulate_media(color_scheme="dark")
    assert ground() != light
    page.screenshot(path=str(tmp_path / "dark.png"), full_page=True)
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
