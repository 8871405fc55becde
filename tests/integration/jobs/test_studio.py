from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import chromium
import program
import pytest
from run_parts import make_home, own_model, write

from corrigenda.data import read_facts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytest.importorskip("nicegui", reason="needs NiceGUI (pip install 'corrigenda[studio]')")

SENTENCE, SUBJECT = "the Eiffel tower is located in the city of", "the Eiffel tower"
PATIENCE = 60_000
"""Milliseconds."""


@contextmanager
def studio(home: Path, *settings: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address, and its process; ended when the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["editor=finetune", "editor.layer=1", "editor.lr=0.05", "open=false", f"port={port}"]
    process = subprocess.Popen(
        [sys.executable, str(program.RUN), "studio", *own_model(home), *options, *settings],
        cwd=home,
        env=outside(program.environment(home / "cache")) | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if "the studio is at" in line:
                break
        assert process.poll() is None, "".join(said)
        threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop it
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def outside(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which NiceGUI does not take itself for a test's."""
    return {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("studio"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(home: Path, browser: Browser) -> Iterator[str]:
    with studio(home) as (address, _):
        yield address


@contextmanager
def tab(browser: Browser, address: str, width: int = 1100, look: str = "light") -> Iterator[Page]:
    """A tab with the page; no script fails in it, and it asks nobody but the studio."""
    context: BrowserContext = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=look)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on(
        "request", lambda request: None if request.url.startswith((address, "data:")) else problems.append(request.url)
    )
    page.goto(address)
    page.get_by_role("button", name="Apply").wait_for()
    yield page
    context.close()
    assert not problems


def test_by_keyboard_alone_and_a_second_tab(browser: Browser, address: str, home: Path) -> None:
    with tab(browser, address) as page, tab(browser, address, width=390) as second:
        (home / "corrections.jsonl").unlink(missing_ok=True)
        page.get_by_text("Nothing is in the list yet").wait_for()
        page.get_by_label("Sentence").focus()
        keys = page.keyboard
        for value in (SENTENCE, SUBJECT, "Rome"):
            keys.type(value)
            keys.press("Tab" if value != "Rome" else "Enter")
        second.get_by_text(f"{SENTENCE} Rome").wait_for()
        assert [fact.target_new for fact in read_facts(home / "corrections.jsonl")] == ["Rome"]
        reach(page, "Apply")
        keys.press("Enter")
        for each in (page, second):
            each.get_by_text("with 1 correction by finetune").wait_for()
            each.get_by_role("cell", name="held", exact=True).wait_for()
        reach(page, "Corrections")
        keys.press("ArrowRight")
        keys.press("Enter")
        page.get_by_label("Question, or").wait_for()
        reach(page, "Question, or the beginning of a sentence")
        keys.type(SENTENCE)
        keys.press("Enter")
        page.get_by_text("After", exact=True).wait_for()
        reach(page, "Undo")
        keys.press("Space")
        second.get_by_text("as it was loaded").wait_for()


def reach(page: Page, name: str) -> None:
    """Goes by the Tab key to what is called so."""
    for _ in range(80):
        page.keyboard.press("Tab")
        script = "e => (e.getAttribute('aria-label') || e.innerText || '').trim().toLowerCase()"
        if page.evaluate_handle("document.activeElement").evaluate(script) == name.lower():
            return
    raise AssertionError(f"the Tab key never comes to {name}")


def test_nothing_stands_out_on_a_phone_and_dark_is_dark(browser: Browser, address: str) -> None:
    for width in (390, 1100):
        for look in ("light", "dark"):
            with tab(browser, address, width, look) as page:
                for name in ("Ask", "Where it lies", "Take with you", "Corrections"):
                    page.get_by_role("tab", name=name).click()
                    page.wait_for_timeout(400)
                    assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
                ink = page.evaluate("getComputedStyle(document.querySelector('.q-table td')).color")
                dark = sum(map(int, re.findall(r"\d+", ink)[:3])) > 3 * 128
                assert dark == (look == "dark"), ink


def test_a_picture_and_an_export(browser: Browser, address: str, home: Path) -> None:
    line = {"id": "tower", "subject": SUBJECT, "prompt": "{} is located in the city of", "target_new": "Rome"}
    write(home / "corrections.jsonl", [line])
    with tab(browser, address) as page:
        page.get_by_role("button", name="Apply").click()
        page.get_by_text("with 1 correction by finetune").wait_for()
        page.get_by_role("tab", name="Where").click()
        page.get_by_role("button", name="Trace").click()
        page.wait_for_function("[...document.images].some(image => image.naturalWidth > 100)")
        page.get_by_role("tab", name="Take").click()
        page.get_by_role("button", name="gguf-adapter").click()
        page.get_by_role("link", name="adapter.gguf").wait_for()
        assert (home / "studio" / "gguf-adapter" / "adapter.gguf").read_bytes().startswith(b"GGUF")


def test_only_this_folder_and_this_machine(address: str, home: Path) -> None:
    import httpx

    (home / "secret.txt").write_text("not for everybody")
    for way in ("..%2fsecret.txt", "%2e%2e/secret.txt", str(home / "secret.txt")):
        assert "not for everybody" not in httpx.get(f"{address}/files/{way}").text
    assert httpx.get(address, headers={"host": "elsewhere.example"}).status_code == 400


def test_a_password_and_a_kill_that_loses_nothing(browser: Browser, tmp_path: Path) -> None:
    import httpx

    home = make_home(tmp_path)
    (home / "more.csv").write_text("id,subject,prompt,target_new\nben,Big Ben,{} is in,Rome\n")
    with studio(home, CORRIGENDA_STUDIO_PASSWORD="secret") as (address, process):
        assert httpx.get(address).status_code == 401
        context = browser.new_context(http_credentials={"username": "anyone", "password": "secret"})
        page = context.new_page()
        page.goto(address)
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Import a file").click()
        chooser.value.set_files(home / "more.csv")
        page.get_by_text("1 correction added of 1 in more.csv").wait_for()
        page.get_by_text("Big Ben is in Rome").wait_for()
        said = program.call(
            home, "studio", *own_model(home), "open=false", f"port={port_after(address)}", succeeds=False
        )
        assert "another studio works on it" in said
        process.send_signal(signal.SIGKILL)
        process.wait()
        context.close()
    assert [fact.claim for fact in read_facts(home / "corrections.jsonl")] == ["Big Ben is in Rome"]


def port_after(address: str) -> int:
    """Another port than that of an address."""
    return int(address.rpartition(":")[2]) + 1


SLOW = """
import time

from jobs.studio.session import Session


def sleep(session):
    with session.at_work("Sleeping"):
        time.sleep(600)


Session.try_out = sleep
"""


def test_an_interruption_does_not_wait_for_what_is_under_way(browser: Browser, tmp_path: Path) -> None:
    home = make_home(tmp_path)
    (home / "slow.py").write_text(SLOW)
    with studio(home, "plugins=[slow]") as (address, process):
        page = browser.new_page()
        page.goto(address)
        page.get_by_role("button", name="Try all").click()
        page.get_by_text("Sleeping").wait_for()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        page.close()
