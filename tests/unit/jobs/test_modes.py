"""run.py end to end: its modes, what it leaves behind, and that a killed run goes on and ends the same."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import program
import pytest
import tiny

from jobs.shared.job import run_folder

CITIES = ["Paris", "London", "Berlin", "Rome"]
SUBJECTS = ["Danielle Darrieux", "Thomas", "Big Ben", "Eiffel", "tower", "river", "red", "blue", "seven", "north"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, ten facts about words it knows, and a cache of its own."""
    home = tmp_path_factory.mktemp("run")
    tiny.build("llama").save_pretrained(home / "model")
    with (home / "facts.jsonl").open("w") as file:
        for number, subject in enumerate(SUBJECTS):
            true, new = CITIES[number % 4], CITIES[(number + 1) % 4]
            fact = {
                "id": f"fact-{number}",
                "subject": subject,
                "prompt": "the city of {} is",
                "target_true": true,
                "target_new": new,
                "paraphrases": [f"{subject} stands in the city of"],
                "neighbourhood": ["the city of green is", "the city of nine is"],
                "locality": [{"prompt": "the capital of France is", "answer": "Paris"}],
                "portability": [{"prompt": f"{subject} is in the country of", "answer": "Italy"}],
                "generation": [f"{subject} is"],
            }
            file.write(json.dumps(fact) + "\n")
    return home


def arguments_of(home: Path, *overrides: str) -> list[str]:
    small = ["editor.prefix_lengths=[[3,2]]", "editor.text.tokens=640", "editor.text.length=16", "editor.layer=1"]
    return [
        "model=own",
        f"model.name={home / 'model'}",
        "model.device=cpu",
        "data=facts",
        f"data.path={home / 'facts.jsonl'}",
        "eval.perplexity_windows=3",
        "eval.perplexity_window=16",
        "eval.max_new_tokens=4",
        "eval.fluency_tokens=8",
        *([] if any(override.startswith(("editor=", "resume=")) for override in overrides) else small),
        *overrides,
    ]


def run(home: Path, *overrides: str, succeeds: bool = True) -> str:
    return program.call(home, *arguments_of(home, *overrides), succeeds=succeeds)


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    monkeypatch.setattr("jobs.shared.job.datetime", Stopped)
    folders = [Path(run_folder(None, str(tmp_path), {"name": "edit"})) for _ in range(3)]
    day = tmp_path / "2026-01-02"
    assert folders == [day / "03-04-05", day / "03-04-05-2", day / "03-04-05-3"]
    assert all(folder.is_dir() for folder in folders)
    there = tmp_path / "there"
    there.mkdir()
    parts = ("model", "data", "editor", "eval", "logger", "job", "mode", "seed", "choices")
    (there / "config.yaml").write_text("".join(f"{part}: {{a: 0}}\n" for part in parts))
    assert run_folder(str(there), str(tmp_path), {"name": "edit"}) == str(there)
