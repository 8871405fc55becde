import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import program
import pytest
import tiny
import torch
from clusters import two_workers
from run_parts import (
    CITIES,
    SMALL_EDITOR,
    SMALL_EVALUATION,
    SUBJECTS,
    assert_same,
    cut_short,
    kill_at,
    make_home,
    n_lines,
    own_data,
    record,
    summary_in,
    timeless,
)

from corrigenda import Edit
from corrigenda.runs.records import records_in
from eval import METRICS
from locate import CausalTraceResult

NAMES = SUBJECTS[:6]

METRIC = """
from eval.metrics import Needs, metric


@metric("words_said", title="words of the answer", unit="words", better=None,
        needs=(Needs("free_answers", ("prompt",)),))
def words_said(before, after):
    answers = [record.answer for record in after.scored("prompt") if record.answer is not None]
    return sum(len(answer.split()) for answer in answers) if answers else None
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny model, six facts, a metric of the user's, and a file of theirs with the name of a package of ours."""
    home = tmp_path_factory.mktemp("spread")
    lm = tiny.build("llama")
    records = []
    for number, subject in enumerate(NAMES):
        prompt = f"the city of {subject} is"
        top = lm.tokenizer.decode([int(lm.model(torch.tensor([lm.tokens(prompt)])).logits[0, -1].argmax())])
        true = top if number % 3 else CITIES[number % 4]
        new = next(city for city in CITIES[number % 4 :] + CITIES if city != true)
        neighbours = ["the city of green is", "the city of nine is"]
        fact = record(number, subject, target_true=true, target_new=new, neighbourhood=neighbours, generation=[])
        records.append(fact)
    make_home(home, records)
    (home / "their_metric.py").write_text(METRIC)
    (home / "eval.py").write_text("raise RuntimeError('a user's own file')")
    yield home
    if "words_said" in METRICS:
        METRICS.remove("words_said")


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    with two_workers(home / "cache", __file__) as address:
        yield address


def arguments(home: Path, *overrides: str) -> list[str]:
    if any(override.startswith("resume=") for override in overrides):
        return list(overrides)
    return [*own_data(home), *overrides]


EDIT = [
    *(*SMALL_EDITOR, "editor.layer=1"),
    "editor.value.steps=4",  # few, so that rounding has no time to grow
    *SMALL_EVALUATION,
    "plugins=[their_metric]",
]


def run(home: Path, *overrides: str) -> str:
    return program.call(home, *arguments(home, *overrides))


def scored(folder: Path) -> list[dict[str, Any]]:
    """The cases in the order of their facts, without what is measured by the clock."""
    return sorted(timeless(folder), key=lambda case: NAMES.index(case["fact"]["subject"]))


@pytest.fixture(scope="module")
def alone(home: Path) -> Path:
    run(home, *EDIT, "hydra.run.dir=alone", "store=store")
    return home / "alone"


def test_edits_one_by_one(home: Path, alone: Path, address: str) -> None:
    run(home, *EDIT, "workers.number=2", "hydra.run.dir=spread", "force=true", "store=other")
    assert_same(scored(home / "spread"), scored(alone))
    assert {"words_said"} <= scored(home / "spread")[0]["after"]["values"].keys()
    one, two = (summary_in(path) for path in (alone, home / "spread"))
    assert_same(two["metrics"], one["metrics"])
    assert (two["workers"], "workers" in one) == (2, False)
    for path in sorted((alone / "edits").iterdir()):
        mine, theirs = Edit.load(path), Edit.load(home / "spread" / "edits" / path.name)
        torch.testing.assert_close(mine.delta(1), theirs.delta(1), rtol=1e-4, atol=1e-5)  # type: ignore[attr-defined]
    # Over how many it is spread makes no other run of it.
    ids = [json.loads((path / "identity.json").read_text())["id"] for path in (alone, home / "spread")]
    assert ids[0] == ids[1]


def test_killed_and_gone_on_with(home: Path, alone: Path, address: str) -> None:
    folder = home / "killed"
    spread = ["workers.number=2", f"workers.address={address}", "store=third", f"hydra.run.dir={folder}"]
    cases = folder / "cases.jsonl"
    kill_at(home, arguments(home, *EDIT, *spread), cases, 1)
    assert 1 <= n_lines(cases) < 6
    run(home, f"resume={folder}", "plugins=[their_metric]", "workers.number=0", "workers.address=null")
    assert_same(scored(folder), scored(alone))
    assert len(list(records_in(folder))) == 6


def test_a_survey(home: Path, address: str) -> None:
    small = ["job=trace", "job.facts=3", "job.locator.window=2", "job.locator.noise.samples=2", "job.sites=[ffn,block]"]
    run(home, *small, "hydra.run.dir=traced")
    run(home, *small, "workers.number=2", "hydra.run.dir=traced-spread")
    one, two = (summary_in(home / name) for name in ("traced", "traced-spread"))
    assert one["n_located"] == 3
    assert one["n_unknown"] >= 1
    assert one.pop("seconds_per_fact").keys() == two.pop("seconds_per_fact").keys()
    assert_same(two, one)
    lines = [{record["id"] for record in records_in(home / name)} for name in ("traced", "traced-spread")]
    assert lines[0] == lines[1]
    for path in sorted((home / "traced" / "results").iterdir()):
        mine, theirs = map(CausalTraceResult.load, (path, home / "traced-spread" / "results" / path.name))
        torch.testing.assert_close(mine.scores, theirs.scores, rtol=0, atol=1e-5)
    # What was found stays when the rest is gone on with, with more workers or with none.
    cut_short(home / "traced-spread", 3)
    run(home, "resume=traced-spread", "workers.number=0")
    again = summary_in(home / "traced-spread")
    again.pop("seconds_per_fact")
    assert_same(again, one)
