import json
import re
import shlex
from pathlib import Path

import program
import pytest
import tiny
import torch
from run_parts import make_home, own_data, write_code_of_page

from locate.saving import SavedResult


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    facts = [
        {"id": f"fact-{n}", "subject": subject, "prompt": "{} is", "target_true": "Paris", "target_new": "Rome"}
        for n, subject in enumerate(("red", "blue", "seven"))
    ]
    make_home(tmp_path, facts)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def call(home: Path, *arguments: str, succeeds: bool = True) -> str:
    return program.call(home, *arguments, *own_data(home), succeeds=succeeds)


def of_page(home: Path, word: str) -> list[str]:
    """The arguments of the page's command that has a word in it."""
    page = write_code_of_page(home)
    blocks = re.findall(r"^```sh\ncorrigenda (.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    [found] = [shlex.split(block) for block in blocks if word in block]
    return found


def test_a_job_is_one_file(home: Path) -> None:
    said = call(home, *of_page(home, "my_job.Count"), "hydra.run.dir=counted")
    assert f"counted: {{'layers': {tiny.DEPTH}, 'facts': 9}}" in said
    assert json.loads((home / "counted/summary.json").read_text()) == {"layers": tiny.DEPTH, "facts": 9}
    assert "own " in call(home, "job=runs", f"store={home}")
    assert "times=0 must be" in call(home, "job=own", "job._target_=my_job.Count", "+job.times=0", succeeds=False)
    assert "job._target_=package.module.Class" in call(home, "job=own", succeeds=False)


def test_a_configuration_gives_it_a_name(home: Path) -> None:
    command = of_page(home, "--config-dir")
    (home / "my-conf/job").mkdir(parents=True)
    (home / "my-conf/job/count.yaml").write_text("name: count\n_target_: my_job.Count\ntimes: 2\n")
    call(home, *command[2:3], *command[:2], *command[3:], "hydra.run.dir=counted")
    assert json.loads((home / "counted/summary.json").read_text())["facts"] == 9
    assert "count " in call(home, "job=runs", f"store={home}")


def test_a_locator_is_one_file(home: Path) -> None:
    said = call(home, *of_page(home, "my_locator.Norms"), "job.facts=2", "hydra.run.dir=found")
    assert "results and pictures in" in said
    assert json.loads((home / "found/summary.json").read_text())["n_located"] == 2
    assert sorted(path.name for path in (home / "found/pictures").iterdir()) == ["0000-fact-0.png", "0001-fact-1.png"]
    # Cut short after the second fact, it goes on: the first result is read, and not found again.
    results, found = home / "found/results", import_result()
    norms = found.load(results / "0000-fact-0").norms
    assert len(norms) == tiny.DEPTH
    found(torch.full_like(norms, 9)).save(results / "0000-fact-0")
    (home / "found/summary.json").unlink()
    # A stranger's run could name anything: what is not of this project has to stand in the command, too.
    said = call(home, "resume=found", succeeds=False)
    added_words = said.rpartition("if you trust that run, add ")[2].split()
    assert added_words == ["++job.locator._target_=my_locator.Norms"]
    call(home, "resume=found", *added_words)
    assert set(found.load(results / "0000-fact-0").norms.tolist()) == {9}
    assert found.load(results / "0001-fact-1").norms.equal(norms)
    wrong = ["survey", "job.locator._target_=my_locator.Norms", "+job.locator.times=-1", "hydra.run.dir=wrong"]
    assert "times=-1 must be positive" in call(home, *wrong, succeeds=False)


def import_result() -> type[SavedResult]:
    from my_locator import NormsResult  # type: ignore[import-not-found]

    found: type[SavedResult] = NormsResult
    return found
