import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
import yaml
from sequences import Nudge

from corrigenda import Fact, LanguageModel
from corrigenda.data import FactSet
from corrigenda.facts import Probe
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.store import Store
from eval import METRICS, EditRun, EvalSettings, SequentialSettings, evaluate, run_sequential, run_single
from eval.leaderboard import leaderboard, write_leaderboard
from eval.leaderboard.recompute import recomputed
from eval.protocols.curves import curve_table
from eval.protocols.pre_edit import PreEditMeasurement

SMALL = EvalSettings(max_new_tokens=4, preservation_tokens=3, perplexity_windows=0)

ONE_FILE = '''
"""How many words the free answer has."""

from eval.metrics import CurveColumn, LeaderboardColumn, Needs, metric


@metric(
    "answer_words",
    title="words of the free answer",
    unit="words",
    better="low",
    needs=(Needs("free_answers", ("prompt",)),),
    short="answer",
    edit_should="keep",
    column=LeaderboardColumn(),
    curve=(CurveColumn(heading="answer", place=55), CurveColumn("right_after", "answer right after", 15)),
)
def answer_words(before, after):
    answers = [record.answer for record in after.scored("prompt") if record.answer is not None]
    return sum(len(answer.split()) for answer in answers) if answers else None
'''

FACTS = FactSet(
    "some",
    tuple(
        Fact(subject, "the city of {} is", "Rome", "Berlin", id=f"{number}", locality=(Probe("one two", "three"),))
        for number, subject in enumerate(("Thomas", "Danielle", "tower"))
    ),
)


@pytest.fixture(autouse=True)
def outside(tmp_path: Path) -> Iterator[None]:
    """The file, imported from a folder that is no package."""
    path = tmp_path / "their_metric.py"
    path.write_text(ONE_FILE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("their_metric", path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    yield
    METRICS.remove("answer_words")


lm = pytest.fixture(tiny.steep, scope="module")


def words(lm: LanguageModel, fact: Fact) -> int:
    return len(lm.generate(fact.statement, SMALL.max_new_tokens).split())


def test_in_an_evaluation(lm: LanguageModel) -> None:
    with Nudge().edit(lm, list(FACTS)).applied(lm):
        found = evaluate(lm, list(FACTS), SMALL)
        after = sum(words(lm, fact) for fact in FACTS) / 3
    before = sum(words(lm, fact) for fact in FACTS) / 3
    summary = found.metrics["answer_words"]
    assert (summary["before"], summary["after"], summary["n"]) == (pytest.approx(before), pytest.approx(after), 3)
    [line] = [line for line in str(found).splitlines() if "words of the free answer" in line]
    assert f"{after:.3f}" in line
    [case, *_] = found.cases
    again = recomputed(case.fact, json.loads(json.dumps(case.to_dict())))
    assert again.after.values["answer_words"] == case.after.values["answer_words"]


def test_what_is_kept_of_the_unedited_model_is_of_the_metrics_that_there_are(lm: LanguageModel, tmp_path: Path) -> None:
    theirs = METRICS["answer_words"]
    METRICS.remove("answer_words")
    try:
        [without, *_] = PreEditMeasurement(lm, FACTS, SMALL, 3, tmp_path).chunk(0)
    finally:
        METRICS.register(theirs)
    [found, *_] = PreEditMeasurement(lm, FACTS, SMALL, 3, tmp_path).chunk(0)
    assert "answer_words" not in without.values
    assert found.values["answer_words"] == words(lm, FACTS[0])
    assert found.values == without.values | {"answer_words": found.values["answer_words"]}


def test_in_runs_and_on_the_leaderboard(lm: LanguageModel, tmp_path: Path) -> None:
    for mode in ("single", "sequential"):
        folder = RunFolder(tmp_path / "outputs" / mode)
        config = {"mode": mode, "seed": 0, "editor": {"_target_": "Nudge"}, "model": {"name": "tiny"}, "eval": {}}
        folder.begin(yaml.safe_dump(config))
        run = EditRun(lm, FACTS, Nudge(), SMALL, folder)
        if mode == "single":
            run_single(run)
            summary = run.summary(mode)
        else:
            sequence = run_sequential(run, SequentialSettings(checkpoints=(1,)))
            summary = sequence.summary()
            assert {"answer_words"} <= summary["curve"][0]["metrics"].keys() & summary["curve"][0]["right_after"].keys()
            headers = [str(column.header) for column in curve_table(sequence.curve).columns]
            assert headers.index("right after") < headers.index("answer right after") < headers.index("reliability")
            assert headers.index("free") < headers.index("answer")
        assert summary["metrics"]["answer_words"]["n"] == 3
        folder.finish(summary)
    boards = leaderboard(Store(tmp_path / "outputs").runs(), min_facts=2).boards
    assert [board.columns[-1].key for board in boards] == ["answer_words", "answer_words"]
    written = write_leaderboard(leaderboard(Store(tmp_path / "outputs").runs(), min_facts=2), tmp_path)
    text, _, _, page = (path.read_text("utf-8") for path in written)
    assert "| answer ↓ |" in text
    assert "; answer: words of the free answer (words)" in text
    assert 'title="words of the free answer (words); low is better"' in page
    assert '"key":"answer_words","short":"answer","better":"low"' in page
