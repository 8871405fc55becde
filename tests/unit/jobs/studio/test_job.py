import asyncio
import base64
import importlib.util
import io
import re
import socket
import sys
from pathlib import Path
from typing import Any

import program
import pytest
import yaml
from run_parts import make_home

from corrigenda.errors import SettingsError
from jobs.studio import access, job
from jobs.studio.job import AIMS

README = (Path(__file__).parents[4] / "README.md").read_text(encoding="utf-8")


def test_the_editors_are_those_of_the_readme() -> None:
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)`", README, re.MULTILINE)
    assert {(aim, name) for name, aim in AIMS.items()} <= set(rows)


def test_without_nicegui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: (name != "nicegui" and find(name, *rest)) or None
    )
    said = program.call(tmp_path, "studio", succeeds=False)
    assert said.strip().splitlines()[-1] == "job=studio needs NiceGUI: pip install 'corrigenda[studio]'"


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = program.call(tmp_path, "studio", f"port={port}", succeeds=False)
    assert (
        f"job.port={port}: cannot listen on 127.0.0.1:{port} (Address already in use); give another port= or host="
        in said
    )


def test_a_host_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_server", unknown)
    with pytest.raises(SettingsError, match=r"no-host:80 \(Name or service not known\); give another port= or host="):
        access.require_free("no-host", 80)


def test_a_tuned_model_of_a_folder_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nicegui", reason="needs NiceGUI (pip install 'corrigenda[studio]')")
    make_home(tmp_path)
    (tmp_path / "conf/model").mkdir(parents=True)
    tuned = {"rome": {"settings": {"layer": 2}}}
    own = {"defaults": ["own", "_self_"], "name": str(tmp_path / "model"), "tuned": tuned}
    (tmp_path / "conf/model/mine.yaml").write_text(yaml.safe_dump(own))
    begun: list[Any] = []
    monkeypatch.setattr(job, "serve", lambda session, *_: begun.append(session))
    monkeypatch.setattr(job, "require_free", lambda *_: None)
    chosen = ["--config-dir", str(tmp_path / "conf"), "model=mine"]
    program.call(tmp_path, "studio", *chosen)
    [session] = begun
    assert list(session.editors) == list(AIMS)
    assert session.editors["rome"].layer == 2
    assert session.model == chosen


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("list=../elsewhere.jsonl", "it lies outside"),
        ("list=facts.csv", "import other files"),
        ("list=bad.jsonl", "bad.jsonl, line 1"),
        ("folder=/tmp", "job.folder=/tmp: it lies outside"),
        ("host=0.0.0.0", "give a password in $CORRIGENDA_STUDIO_PASSWORD"),
        ("port=0", "job.port=0"),
    ],
)
def test_bad_settings_are_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, said: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (tmp_path / "bad.jsonl").write_text("no list\n")
    told = program.call(tmp_path, "studio", setting, succeeds=False).strip()
    assert said in told
    assert len(told.splitlines()) == 1


def test_the_users_home_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    said = program.call(tmp_path, "studio", "list=~/facts.jsonl", "host=0.0.0.0", succeeds=False)
    assert f"job.list={Path.home() / 'facts.jsonl'}: it lies outside" in said


def test_the_password_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert access.password_for("127.0.0.1") is None
    monkeypatch.setenv(access.VARIABLE, "secret")
    assert access.password_for("0.0.0.0") == access.password_for("localhost") == "secret"
    monkeypatch.delenv(access.VARIABLE)
    monkeypatch.setattr(access.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(access.getpass, "getpass", lambda _: "")
    with pytest.raises(SettingsError):
        access.password_for("0.0.0.0")


@pytest.mark.parametrize(
    ("given", "seen"),
    [("someone:secret", True), ("someone:wrong", False), ("secret", False), (None, False), ("x:secret:", False)],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_only_who_knows_the_password_sees_anything(kind: str, given: str | None, seen: bool) -> None:
    passed: list[object] = []
    sent: list[dict[str, Any]] = []

    async def app(scope: object, receive: object, send: object) -> None:
        passed.append(scope)

    async def receive() -> dict[str, Any]:
        return {"type": f"{kind}.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    header = [] if given is None else [(b"authorization", b"Basic " + base64.b64encode(given.encode()))]
    asyncio.run(access.Password(app, "secret")({"type": kind, "headers": header}, receive, send))
    assert bool(passed) == seen
    if not seen:
        assert sent[0].get("status", 401) == 401
        assert sent[0].get("code", 1008) == 1008
        assert sent
