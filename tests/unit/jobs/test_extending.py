"""A job and a locator from outside the package: one file and one configuration each, run by run.py."""

from __future__ import annotations

import json
from pathlib import Path

import program
import pytest
import tiny
from run_parts import make_home, own_data

JOB = '''
"""Counts the layers of a model and the facts of its data."""
from corrigenda.system.files import write_json
from jobs.shared.base import begin, load_model, say
from jobs.shared.data import read_data
from jobs.shared.job import Job


class Count(Job):
    def run(self, config, folder):
        facts, lm = read_data(config.data), load_model(config)
        with folder.held():
            begin(config, folder)
            found = {"layers": lm.n_layers, "facts": config.job.times * len(facts)}
            say(f"counted: {found}")
            folder.finish(found)
            return float(found["facts"])
'''

LOCATOR = '''
"""How far each layer's values are from zero, whatever the fact."""
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Norms:
    norms: tuple

    def summary(self):
        return {"largest": max(self.norms)}

    def plot(self, path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("|".join("#" * round(norm) for norm in self.norms))

    def save(self, folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "norms.json").write_text(json.dumps(self.norms))

    @classmethod
    def load(cls, folder):
        return cls(tuple(json.loads((Path(folder) / "norms.json").read_text())))


@dataclass(frozen=True)
class ValueNorms:
    times: float = 1.0

    def check(self, lm):
        if self.times <= 0:
            raise ValueError("times must be positive")

    def find(self, lm, fact, answer=None):
        return Norms(tuple(self.times * float(lm.memory(layer).values.norm()) for layer in range(lm.n_layers)))
'''


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    facts = [
        {"id": f"fact-{n}", "subject": subject, "prompt": "{} is", "target_true": "Paris", "target_new": "Rome"}
        for n, subject in enumerate(("red", "blue", "seven"))
    ]
    make_home(tmp_path, facts)
    (tmp_path / "outside" / "conf" / "job").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "outside")
    return tmp_path


def call(home: Path, *arguments: str, succeeds: bool = True) -> str:
    return program.call(home, *arguments, *own_data(home), succeeds=succeeds)


def added(home: Path) -> list[str]:
    outside = home / "outside"
    return sorted(str(path.relative_to(outside)) for path in outside.rglob("*.*") if "__pycache__" not in path.parts)


def test_a_job_is_one_file_and_one_configuration(home: Path) -> None:
    (home / "outside" / "toy_job.py").write_text(JOB)
    (home / "outside/conf/job/count.yaml").write_text("name: count\n_target_: toy_job.Count\ntimes: 2\n")
    assert added(home) == ["conf/job/count.yaml", "toy_job.py"]

    said = call(home, "--config-dir", str(home / "outside/conf"), "job=count", "hydra.run.dir=counted")
    assert f"counted: {{'layers': {tiny.DEPTH}, 'facts': 6}}" in said
    assert json.loads((home / "counted/summary.json").read_text()) == {"layers": tiny.DEPTH, "facts": 6}
    assert "count " in call(home, "job=runs", f"store={home}")


def test_a_locator_is_one_file_and_one_configuration(home: Path) -> None:
    (home / "outside" / "toy_locator.py").write_text(LOCATOR)
    (home / "outside/conf/job/norms.yaml").write_text(
        "defaults: [survey]\n"
        "name: norms\n"
        "_target_: jobs.survey.Job\n"
        "locator: {_target_: toy_locator.ValueNorms}\n"
        "result: toy_locator.Norms\n"
        "picture: .txt\n"
    )
    assert added(home) == ["conf/job/norms.yaml", "toy_locator.py"]

    searched = f"hydra.searchpath=[file://{home / 'outside/conf'}]"
    said = call(home, searched, "job=norms", "job.facts=2", "+job.locator.times=2", "hydra.run.dir=found")
    assert "results and pictures in" in said
    summary = json.loads((home / "found/summary.json").read_text())
    assert summary["n_located"] == 2
    assert sorted(path.name for path in (home / "found/pictures").iterdir()) == ["0000-fact-0.txt", "0001-fact-1.txt"]
    # Cut short after the first fact, it goes on: the first result is read, and not found again.
    results = home / "found/results"
    saved = json.loads((results / "0000-fact-0/norms.json").read_text())
    assert len(saved) == tiny.DEPTH
    (results / "0000-fact-0/norms.json").write_text(json.dumps([9.0] * tiny.DEPTH))
    (home / "found/summary.json").unlink()
    # A stranger's run could name anything: what is not of this project has to stand in the command, too.
    said = call(home, "resume=found", succeeds=False)
    added_words = said.rpartition("if you trust that run, add ")[2].split()
    assert added_words == ["++job.locator._target_=toy_locator.ValueNorms", "++job.result=toy_locator.Norms"]
    call(home, "resume=found", *added_words)
    assert json.loads((results / "0000-fact-0/norms.json").read_text()) == [9.0] * tiny.DEPTH
    assert json.loads((results / "0001-fact-1/norms.json").read_text()) == saved
    assert "times must be positive" in call(
        home, searched, "job=norms", "+job.locator.times=-1", "hydra.run.dir=wrong", succeeds=False
    )
