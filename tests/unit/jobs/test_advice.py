import re
import shlex
import subprocess
from pathlib import Path

import program
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from jobs.shared.words import long_form, setting

NASTY = (
    *("lr=3,seed=0/facts.jsonl", "facts (v2), final.jsonl", "facts#2.jsonl", "me@home.jsonl", "a b  c", "it's"),
    *('say "so"', "\\", "a\\'b", "null", "1", "1e5", "true", "-x", "*", "?", "a\nb", "a\tb", "\x1b[31m", "\u202e"),
    *("$HOME", "${seed}", "$(rm x)", "`x`", "a;b|c&d>e", "{a}", "[a]", "a:b", "100%", "東京", "é", "~/x", "~x", "!x"),
    *("a\udc80", "\xa0"),
)


def read(argument: str) -> object:
    """What the program reads of an argument."""
    [spelt] = long_form([argument])
    found = OverridesParser.create().parse_override(spelt)
    assert not found.is_sweep_override()
    config = OmegaConf.create({"path": None, "seed": "another"})
    OmegaConf.update(config, "path", found.value())
    return OmegaConf.to_container(config, resolve=True)["path"]  # type: ignore[index,call-overload]


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1))
@example("${a}'\"")
@example("\\\\'")
def test_advice_says_the_path_itself(path: str) -> None:
    if path == "???" or not path.isprintable():
        return  # the first is Hydra's sign for what has no value; the others are of the next test
    [argument] = shlex.split(setting("data.path", path))
    assert read(argument) == path


def test_a_shell_gives_the_program_the_path_itself() -> None:
    typed = " ".join(setting("resume", path) for path in NASTY)
    assert "\n" not in typed
    given = subprocess.run(["bash", "-c", rf"printf '%s\0' {typed}"], capture_output=True, check=True).stdout
    arguments = given.decode(errors="surrogateescape").split("\0")[:-1]
    assert [read(argument) for argument in arguments] == list(NASTY)


def test_a_list_of_paths_is_advised_as_one() -> None:
    [argument] = shlex.split(setting("job.edit", [Path("a=1,b"), Path("it's")]))
    assert read(argument) == ["a=1,b", "it's"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize("path", ["lr=3,seed=0", "a,b", "run#2", "two  spaces, one", "it's", "日本", "(v2)"])
def test_the_program_reads_what_it_said_to_type(home: Path, path: str) -> None:
    said = program.call(home, f"resume={path}", succeeds=False)
    assert len(said.splitlines()) == 1
    typed = re.search(r"it is one text: (.*)$", said.strip())
    argument = f"resume={path}" if typed is None else shlex.split(typed[1])[0]
    assert f"resume={path}: there is no run in this folder" in program.call(home, argument, succeeds=False)


def test_a_table_of_facts_that_hydra_cannot_read_is_advised_with_its_data(home: Path) -> None:
    (home / "lr=3,seed=0.csv").write_text("subject,prompt\n")
    said = program.call(home, "data=zsre", "data.path=lr=3,seed=0.csv", succeeds=False)
    assert said.endswith("in quotes it is one text: data=zsre data.path='\"lr=3,seed=0.csv\"'\n")
    advice = "A file of facts is given as data=facts data.path='\"lr=3,seed=0.csv\"'\n"
    assert program.call(home, "edit", "lr=3,seed=0.csv", succeeds=False).endswith(advice)


def test_a_list_that_hydra_cannot_read_is_advised_as_a_list(home: Path) -> None:
    said = program.call(home, "ask", "A city is", "edit=[~/a, it's]", succeeds=False)
    [argument] = shlex.split(said.rsplit("one text: ", 1)[1])
    assert read(argument) == ["~/a", "it's"]


@pytest.mark.parametrize("path", ["'a folder'", '"a folder"', "a folder"])
def test_a_path_may_be_in_hydras_quotes_and_a_prompt_keeps_its_own(home: Path, path: str) -> None:
    said = program.call(home, "ask", "A city is", f"edit={path}", succeeds=False)
    assert said.startswith("job.edit=a folder: there is no such folder")
    assert long_form(["ask", "prompt='Rome'"]) == ["job=ask", r"job.prompt='\'Rome\''"]


def test_the_home_that_a_shell_leaves_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me, too")
    assert read("store=~/runs") == "/home/me, too/runs"
    assert long_form(["ask", "~/x is", "edit=~/e"]) == ["job=ask", "job.prompt='~/x is'", "job.edit='~/e'"]
