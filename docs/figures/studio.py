"""The pictures of docs/studio.md: a studio with the default model, worked in as a new user does, in a real Chromium.

    python docs/figures/studio.py          (some minutes; needs playwright and a Chromium)

It says how long each step took.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LONG = 600_000
"""Milliseconds that a step may take."""


def main() -> None:
    """Starts a studio, works in it, and keeps a picture of each view."""
    with tempfile.TemporaryDirectory() as home, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        command = [sys.executable, str(ROOT / "run.py"), "studio", f"port={port}", "open=false"]
        studio = subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        try:
            assert studio.stdout is not None
            said = studio.stdout.readline()
            begin = time.monotonic()
            assert "the studio is at" in said, said
            work(f"http://127.0.0.1:{port}", begin)
        finally:
            studio.terminate()
            studio.wait()


def work(address: str, begin: float) -> None:
    """A new user's way, and the pictures."""
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 760})
        page.set_default_timeout(LONG)
        expect.set_options(timeout=LONG)
        launched = time.monotonic()
        page.goto(address)
        expect(page.get_by_role("button", name="Apply")).to_be_visible()
        said("first view, from the browser's request", launched)
        said("first view, from the studio's word that it is there", begin)
        clock = time.monotonic()
        page.get_by_role("button", name="Example").click()
        page.get_by_role("button", name="Add").click()
        expect(page.get_by_role("cell", name="not tried")).to_be_visible()
        page.get_by_role("button", name="Apply").click()
        expect(page.get_by_role("cell", name="held", exact=True)).to_be_visible()
        said("a fact of the example is edited, from the first press", clock)
        for values in (
            ("The clock tower Big Ben stands in the city of", "Big Ben", "Oslo"),
            ("The scientist Marie Curie was born in the city of", "Marie Curie", "Lisbon"),
        ):
            for label, value in zip(("Sentence", "Whom", "New answer"), values, strict=True):
                page.get_by_label(label).fill(value)
            page.get_by_label("New answer").press("Enter")
            expect(page.get_by_text(" ".join(values[::2]))).to_be_visible()
        page.get_by_role("button", name="Apply").click()
        expect(page.get_by_text("with 3 corrections by rome")).to_be_visible()
        picture(page, "corrections")
        page.get_by_role("tab", name="Ask").click()
        page.get_by_label("Question, or").fill("The Eiffel Tower is located in the city of")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_text("After", exact=True)).to_be_visible()
        picture(page, "ask")
        page.get_by_role("tab", name="Where").click()
        clock = time.monotonic()
        page.get_by_role("button", name="Trace").click()
        page.locator("img").wait_for()
        said("a trace", clock)
        picture(page, "where")
        clock = time.monotonic()
        page.get_by_role("button", name="Page of the fact").click()
        page.locator("iframe").wait_for()
        page.frame_locator("iframe").locator("h1").first.wait_for()
        said("the page of a fact", clock)
        picture(page, "fact")
        page.get_by_role("tab", name="Take").click()
        for name in ("adapter", "gguf-adapter", "report"):
            clock = time.monotonic()
            links = page.locator("main a, .nicegui-content a").count()
            page.get_by_role("button", name=name, exact=True).click()
            page.wait_for_function(f"document.querySelectorAll('.nicegui-content a').length > {links}")
            said(name, clock)
        picture(page, "take")
        page.get_by_role("tab", name="Corrections").click()
        for look, width in (("dark", 1100), ("light", 390), ("dark", 390)):
            other = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=look)
            tab = other.new_page()
            tab.goto(address)
            expect(tab.get_by_text("with 3 corrections by rome")).to_be_visible()
            picture(tab, f"{look}-{width}")
        browser.close()


def picture(page: Page, name: str) -> None:
    """Keeps what a view looks like."""
    page.wait_for_timeout(600)  # until nothing moves
    page.screenshot(path=HERE / f"studio-{name}.png")


def said(what: str, begin: float) -> None:
    """Writes down how long something took."""
    sys.stdout.write(f"{what}: {time.monotonic() - begin:.1f} s\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
