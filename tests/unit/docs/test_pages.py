import argparse
import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pages
import pytest
import words
from report import Report

PATHS = (pages.DOCS / "reports").glob("*.py")
SCRIPTS = sorted(path.stem for path in PATHS if "\nREPORT = " in path.read_text(encoding="utf-8"))


def report(script: str) -> Report:
    found = importlib.import_module(script).REPORT
    assert isinstance(found, Report)
    return found


def test_every_data_file_has_its_command() -> None:
    names = {report(script).name for script in SCRIPTS}
    beside = {path.stem for path in (pages.DOCS / "data").glob("*.json")}
    assert {name for name in beside if not name.endswith("-cases")} <= names


def test_every_benchmark_is_on_the_page_of_speed() -> None:
    paths = (pages.ROOT / "benchmarks").glob("*.py")
    files = {path.name for path in paths if "\ndef main(" in path.read_text(encoding="utf-8")}
    assert files == {run.file for run in importlib.import_module("speed").RUNS.values()}


def as_committed(found: Report, data: dict[str, Any], folder: Path) -> None:
    for path in found.page(data, folder):
        if path.suffix in (".md", ".csv", ".html"):  # pictures differ between versions of matplotlib
            committed = (pages.DOCS / path.name).read_text(encoding="utf-8")
            assert path.read_text(encoding="utf-8") == committed, f"make it again: {found.script} page"


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_committed_page_is_what_its_data_give(script: str, tmp_path: Path) -> None:
    found = report(script)
    as_committed(found, pages.read_data(found.name), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_statistics_of_the_data_are_those_of_its_figures(script: str, tmp_path: Path) -> None:
    found = report(script)
    as_committed(found, found.digested(pages.read_data(found.name)), tmp_path)


# -- the data file


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the system says, to be changed."""
    said: dict[str, Any] = {"code": "c0de", "commit": "abc", "load": 0.2}
    monkeypatch.setattr(pages, "code_version", lambda entry: said["code"])
    monkeypatch.setattr(pages, "commit", lambda: said["commit"])
    monkeypatch.setattr(pages, "_load", lambda: said["load"])
    monkeypatch.setattr(pages, "machine", lambda: {"system": "Linux", "processor": "x86_64", "threads": 1})
    return said


def collected(folder: Path, name: str = "page") -> dict[str, Any]:
    runs = {path.name: pages.made(path) for path in sorted(folder.iterdir()) if path.name != "docs"}
    pages.write_data(name, "python docs/reports/a.py collect", pages.Collected({"x": 1}, runs), folder / "docs")
    return pages.read_data(name, folder / "docs")


def told(data: dict[str, Any]) -> str:
    return words.provenance("page", data, "a.py", timed=True)


def test_a_run_notes_how_it_was_made(tmp_path: Path, quiet: dict[str, Any]) -> None:
    with pages.making(tmp_path / "run"):
        [during] = pages.made(tmp_path / "run")
        assert (during["ended"], during["load"]) == (None, [0.2, None])
        quiet["load"] = 1.1
    data = collected(tmp_path)
    assert (data["page"], data["figures"]) == ("page", {"x": 1})
    [entry] = data["runs"]["run"]
    assert entry["load"] == [0.2, 1.1]
    assert data["made"][entry["made"]]["code"] == "c0de"
    assert {"python", "torch"} <= set(data["made"][0]["versions"])


def test_one_version_is_said_and_several_are_said_louder(tmp_path: Path, quiet: dict[str, Any]) -> None:
    for run in ("a", "b"):
        with pages.making(tmp_path / run):
            pass
    data = collected(tmp_path)
    assert len(data["made"]) == 1  # noted once
    assert "Code version c0de." in told(data)
    quiet["code"] = "0ther"
    with pages.making(tmp_path / "b"):  # it was stopped, and went on with other code
        pass
    assert "**The figures are of 2 versions of the code**" in told(collected(tmp_path))


def test_a_page_says_how_many_runs_were_made_where(
    tmp_path: Path, quiet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("a", "b"):
        with pages.making(tmp_path / run):
            pass
    assert ", CPU, 1 thread." in told(collected(tmp_path))
    on_gpu = pages.machine() | {"gpu": "a card"}
    monkeypatch.setattr(pages, "machine", lambda: on_gpu)
    for run in ("b", "c"):  # the one went on there, the other began
        with pages.making(tmp_path / run):
            pass
    text = told(collected(tmp_path))
    assert ", CPU, 1 thread (2 of 3 runs); " in text
    assert ", a card, 1 thread (2 of 3 runs)." in text


def test_a_run_that_nobody_noted_is_of_an_unknown_version(tmp_path: Path, quiet: dict[str, Any]) -> None:
    (tmp_path / "old").mkdir()
    assert "code version of the figures is not known" in told(collected(tmp_path))
    with pages.making(tmp_path / "new"):
        pass
    data = collected(tmp_path)
    assert "**Of some figures the code version is not known**" in told(data)
    assert "Seconds may be" in told(data)


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        (0.1, 1.2, "are those of an idle machine (load average 0.1 to 1.2)"),
        (0.1, 2.3, "a machine that other work shared (load average 0.1 to 2.3)"),
        (3.0, 1.0, "a machine that other work shared"),
        (None, None, "may be those of a machine that other work shared"),
    ],
)
def test_seconds_are_of_an_idle_machine_only_where_the_load_says_so(
    tmp_path: Path, quiet: dict[str, Any], begin: float | None, end: float | None, said: str
) -> None:
    quiet["load"] = begin
    with pages.making(tmp_path / "run"):
        quiet["load"] = end
    assert said in told(collected(tmp_path))


def test_a_command_that_was_killed_leaves_the_load_unknown(tmp_path: Path, quiet: dict[str, Any]) -> None:
    with pages.making(tmp_path / "run"):
        data = collected(tmp_path)
    assert "may be" in told(data)


def test_the_commit_says_whether_files_are_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"rev-parse": "0123456789ab\n", "status": ""}
    monkeypatch.setattr(pages, "_git", lambda *arguments: answers[arguments[0]])
    assert pages.commit() == "0123456789ab"
    answers["status"] = " M eval/scoring/probabilities.py\n"
    assert pages.commit() == "0123456789ab+"

    def missing(*arguments: str) -> str:
        raise FileNotFoundError("git")

    monkeypatch.setattr(pages, "_git", missing)
    assert pages.commit() == pages.UNKNOWN


def test_the_load_is_the_systems() -> None:
    assert pages._load() == pytest.approx(os.getloadavg()[0], abs=0.5)


# -- the command line


def test_the_steps_of_a_command(tmp_path: Path, quiet: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    def collect(options: Any) -> pages.Collected | None:
        with pages.making(tmp_path / "run"):
            return pages.Collected({"n": options.n}, {"run": pages.made(tmp_path / "run")}) if options.n else None

    def page(data: Any, docs: Path) -> list[Path]:
        (docs / "toy.md").write_text(f"n is {data['figures']['n']}")
        return [docs / "toy.md"]

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--n", type=int)

    def digest(figures: Mapping[str, Any]) -> dict[str, Any]:
        return {"half": figures["n"] / 2}

    pictures = {"toy.txt": lambda data, path: path.write_text(str(data["digest"]["half"]))}
    toy = Report("toy", "toy.py", "A toy.", options, collect, digest, pictures=pictures, write_page=page)
    docs = ["--docs", str(tmp_path)]
    with pytest.raises(SystemExit, match="no data for this page yet"):
        toy.main(["page", *docs])
    with pytest.raises(SystemExit) as stopped:
        toy.main(["collect", "--n", "0", *docs])
    assert stopped.value.code == 3
    assert not (tmp_path / "data").exists()
    toy.main(["collect", *docs, "--n", "7"])
    data = json.loads((tmp_path / "data" / "toy.json").read_text())
    assert data["command"] == "python docs/reports/toy.py collect --n 7"  # not where it lay
    toy.main(["page", *docs])
    assert (tmp_path / "toy.md").read_text() == "n is 7"
    assert (tmp_path / "figures" / "toy.txt").read_text() == "3.5"
    assert [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()[-2:]] == ["toy.md", "toy.txt"]
    (tmp_path / "data" / "toy.json").write_text(json.dumps(data | {"figures": {"n": 8}}))
    toy.main(["digest", *docs])
    assert json.loads((tmp_path / "data" / "toy.json").read_text()) == data | {
        "figures": {"n": 8},
        "digest": {"half": 4},
    }


def test_a_command_is_told_as_it_runs_anywhere() -> None:
    given = ["collect", "--store", "/here/runs", "--t", "300", "--files=/here/data", "--minutes", "5", "--write"]
    assert pages.anywhere(given) == ["collect", "--t", "300", "--write"]
    assert pages.anywhere(["collect", "--store"]) == ["collect"]
    assert pages.anywhere(["collect", "--facts", "/here/facts.json"]) == ["collect", "--facts", "facts.json"]


def test_what_is_found_of_a_model_stands_beside_the_others(tmp_path: Path, quiet: dict[str, Any]) -> None:
    arguments = argparse.Namespace(docs=tmp_path, anew=False)

    def add(model: str, figures: int, run: str) -> dict[str, Any]:
        found = pages.beside("page", model, figures, {run: [made_at("now")]}, arguments)
        pages.write_data("page", f"collect {model}", found, tmp_path)
        return pages.read_data("page", tmp_path)

    def made_at(time: str) -> dict[str, Any]:
        return {"code": "c0de", "begun": time, "ended": time, "load": [0.0, 0.0]}

    add("a", 1, "old")
    add("ab", 2, "run")
    data = add("a", 3, "new")
    assert data["figures"] == {"models": {"a": 3, "ab": 2}}
    assert sorted(data["runs"]) == ["a: new", "ab: run"]
    assert (data["command"], data["earlier"]) == ("collect a", ["collect ab"])
    twice = Report("page", "page.py", "", lambda parser: None, lambda asked: None, lambda one: {"twice": 2 * one})
    digested = replace(twice, of_models=True).digested(data)
    assert digested["digest"] == {"models": {"a": {"twice": 6}, "ab": {"twice": 4}}}
    arguments.anew = True
    assert add("ab", 4, "run")["figures"] == {"models": {"ab": 4}}
