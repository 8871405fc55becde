import json
from pathlib import Path

import chromium
import program
import pytest
from run_parts import make_home, own_data

FACT = {
    "subject": "Eiffel tower",
    "prompt": "the {} is in",
    "target_new": "Rome",
    "target_true": "Paris",
    "id": "eiffel",
    "neighbourhood": ["Big Ben is in"],
}
SMALL = [
    "job.steps=2",
    "job.neurons=3",
    "job.sub_updates=3",
    "job.words=3",
    "job.answer_tokens=4",
    "job.trace_window=2",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page that the job wrote."""
    other = FACT | {"id": "other", "subject": "Big Ben", "neighbourhood": []}
    home = make_home(tmp_path_factory.mktemp("explain"), [FACT, other])
    run(home, "data.limit=1")
    return home


def run(home: Path, *overrides: str, succeeds: bool = True) -> str:
    named = ["job=explain", *own_data(home), "editor=ft_m", "editor.layer=1", "editor.steps=2"]
    return program.call(home, *named, *SMALL, *overrides, succeeds=succeeds)


def test_the_job(home: Path) -> None:
    assert (home / "fact.html").is_file()
    said = run(home, "job.file=deep/page.html", "job.data=deep/page.json", "job.trace_sites=[attention]")
    assert "the page is of the first of 2 facts; data.offset= chooses another" in said
    assert "the page of eiffel is deep/page.html" in said
    data = json.loads((home / "deep" / "page.json").read_text())
    assert len(data["parts"]["trace"]["after"]["grids"]) == 1
    assert data["settings"]["steps"] == 2
    assert "written as HTML" in run(home, "job.file=page.pdf", succeeds=False)
    assert "job.steps=0 must be" in run(home, "job.steps=0", succeeds=False)


def test_the_page_in_chromium(home: Path, tmp_path: Path) -> None:
    with chromium.opened(home / "fact.html", width=1500) as page:
        data = json.loads(page.locator("#data").text_content() or "")
        assert page.title() == "the Eiffel tower is in Rome"
        assert page.evaluate("document.documentElement.scrollWidth") <= 1500
        assert page.locator("#kind-prompt td").nth(1).inner_text() == "Rome"
        # What the edit wrote is there, with the first component's details.
        assert page.locator("#written .details").get_by_text("strength").is_visible()

        # Hovering a cell shows its figures.
        lens = page.locator("#lens figure[data-side=before]")
        fields = {one["name"]: one["values"] for one in data["parts"]["lens"]["before"]["grids"][0]["fields"]}
        ranks = fields["rank of 'Rome'"]
        cell = lens.locator("td[data-row='0'][data-column='4']")
        assert cell.inner_text() == fields["top token"][0][4]
        tip = page.locator("#tip")
        assert not tip.is_visible()
        cell.hover()
        tip.wait_for(state="visible")
        assert f"rank of 'Rome': {ranks[0][4]}" in tip.inner_text()
        page.evaluate("dispatchEvent(new Event('scroll'))")  # of the scrolling that led there
        assert tip.is_visible()
        page.mouse.move(5, 5)
        assert not tip.is_visible()

        # A click shows all of it, a second one nothing.
        updates = page.locator("#sub_updates figure[data-side=after]")
        details = updates.locator(".details")
        assert details.inner_text() == ""
        updates.locator("td[data-row='1'][data-column='2']").click()
        assert details.get_by_text("eliminates", exact=True).is_visible()
        assert details.locator(".word").count() == 6
        updates.locator("td[data-row='1'][data-column='2']").click()
        assert details.inner_text() == ""

        # The keyboard: arrows walk, Enter opens, Escape closes what is shown on the cell.
        cell.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("[document.activeElement.dataset.row, document.activeElement.dataset.column]") == [
            "1",
            "3",
        ]
        assert tip.is_visible()
        page.keyboard.press("Enter")
        assert lens.locator("td[aria-selected=true]").count() == 1
        assert "P('Rome')" in lens.locator(".details").inner_text()
        page.keyboard.press("Escape")
        assert not tip.is_visible()

        # Both sides have one scale.
        before, after = page.locator("#attribution .scale").all_inner_texts()
        assert before == after != ""

        # Colours by another field.
        def colours() -> list[str]:
            found: list[str] = lens.locator("td[role=gridcell]").evaluate_all(
                "(cells) => cells.map((cell) => getComputedStyle(cell).backgroundColor)"
            )
            return found

        first = colours()
        lens.get_by_role("combobox").select_option(label="P('Rome')")
        assert lens.get_attribute("data-colour") == "P('Rome')"
        assert colours() != first
        assert len(set(first)) > 2


def test_light_and_dark_and_a_phone_in_chromium(home: Path, tmp_path: Path) -> None:
    with chromium.opened(home / "fact.html") as page:

        def ground() -> str:
            found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
            return found

        page.emulate_media(color_scheme="light")
        light = ground()
        page.get_by_role("button", name="Dark").click()
        dark = ground()
        assert dark != light
        page.get_by_role("button", name="Light").click()
        assert ground() == light
        page.reload()
        page.emulate_media(color_scheme="dark")
        assert ground() == dark
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.screenshot(path=str(tmp_path / "phone.png"), full_page=True)
        assert (tmp_path / "phone.png").stat().st_size > 10_000
