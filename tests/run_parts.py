"""A folder with a tiny model and facts about words it knows, for tests that run the program there."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import program
import pytest
import tiny

from corrigenda.runs.records import records_in

CITIES = ["Paris", "London", "Berlin", "Rome"]
SUBJECTS = ["Danielle Darrieux", "Thomas", "Big Ben", "Eiffel", "tower", "river", "red", "blue", "seven", "north"]
ROME = """
prefix_lengths: [[3, 2]]
layer: 1
text: {tokens: 640, length: 16}
"""
"""ROME's settings where a model is tiny, as a configuration has them."""
SMALL_EDITOR = ["editor.prefix_lengths=[[3,2]]", "editor.text.tokens=640", "editor.text.length=16"]
SMALL_EVALUATION = ["eval.perplexity_windows=3", "eval.perplexity_window=16", "eval.max_new_tokens=4"]
SMALL_EVALUATION += ["eval.fluency_tokens=8"]


def record(number: int, subject: str | None = None, **fields: Any) -> dict[str, Any]:
    """A fact's record; `fields` are added, or stand in the place of what is here."""
    subject = subject or SUBJECTS[number]
    return {
        "id": f"fact-{number}",
        "subject": subject,
        "prompt": "the city of {} is",
        "target_true": CITIES[number % 4],
        "target_new": CITIES[(number + 1) % 4],
        "paraphrases": [f"{subject} stands in the city of"],
        "neighbourhood": ["the city of green is"],
        "generation": [f"{subject} is"],
    } | fields


def write(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Writes records as lines of JSON."""
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return path


def make_home(home: Path, records: Iterable[Mapping[str, Any]] = ()) -> Path:
    """Puts a tiny model, ``model``, into a folder, and facts, ``facts.jsonl``."""
    tiny.build("llama").save_pretrained(home / "model")
    write(home / "facts.jsonl", records)
    return home


def own_model(home: Path) -> list[str]:
    """The arguments that name a folder's model."""
    return ["model=own", f"model.name={home / 'model'}", "model.device=cpu"]


def own_data(home: Path) -> list[str]:
    """The arguments that name a folder's model and facts."""
    return [*own_model(home), "data=facts", f"data.path={home / 'facts.jsonl'}"]


def write_code_of_page(folder: Path) -> str:
    """Writes the code of docs/extending.md into files, each named by its first line; gives the page."""
    page = Path(program.RUN.parent, "docs/extending.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        (folder / block.splitlines()[0].removeprefix("# ")).write_text(block, encoding="utf-8")
    return page


def timeless(folder: Path, of: str = "cases") -> list[dict[str, Any]]:
    """A run's records without what is measured by the clock."""
    return [{key: value for key, value in each.items() if key != "seconds"} for each in records_in(folder, of)]


def assert_same(found: Any, expected: Any, place: str = "") -> None:
    """Probabilities to 1e-5; what is a logarithm, a sum or a loss to 1e-4; all else as it is.

    Rounding differs with how a tensor lies in memory, also between two processes that do the same.
    """
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key, value in expected.items():
            assert_same(found[key], value, f"{place}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for number, value in enumerate(expected):
            assert_same(found[number], value, f"{place}.{number}")
    elif isinstance(expected, float):
        atol = 1e-5 if place.rpartition(".")[2].startswith("p_") else 1e-4
        assert found == pytest.approx(expected, rel=1e-5, abs=atol), place
    else:
        assert found == expected, place


def summary_in(folder: Path) -> dict[str, Any]:
    """A run's summary."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def cut_short(folder: Path, n: int, of: str = "cases") -> None:
    """Makes a finished run one that was killed when it had `n` records."""
    write(folder / f"{of}.jsonl", list(records_in(folder, of))[:n])
    (folder / "summary.json").unlink(missing_ok=True)


def kill_at(home: Path, arguments: Sequence[str], file: Path, lines: int) -> None:
    """Runs the program in a process of its own until a file has so many lines: then it is killed without warning."""
    program.killed(home, *arguments, when=partial(_has_lines, file, lines))


def _has_lines(file: Path, lines: int) -> bool:
    return n_lines(file) >= lines


def n_lines(file: Path) -> int:
    """The lines that are on the disk."""
    return file.read_bytes().count(b"\n") if file.is_file() else 0
