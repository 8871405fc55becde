import json
from pathlib import Path

import program
import pytest
from run_parts import make_home, own_data, summary_in

from corrigenda.runs.records import records_in
from corrigenda.runs.store import Store, read_run
from eval.protocols.orders import by_order

SUBJECTS = ["Danielle", "Thomas", "Ben", "Eiffel", "tower", "river", "red", "blue"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and eight facts about words it knows."""
    facts = [
        {"id": name, "subject": name, "prompt": "the city of {} is", "target_true": "Paris", "target_new": "Rome"}
        for name in SUBJECTS
    ]
    return make_home(tmp_path_factory.mktemp("sequences"), facts)


def run(home: Path, *overrides: str, succeeds: bool = True, several: bool = False) -> str:
    """What it says, with single spaces: lines are broken at the width of a terminal."""
    settings = [
        *(*own_data(home), "mode=sequential", "job.locality.limit=0"),
        *("editor=finetune", "editor.layer=2", "editor.lr=0.05", "editor.epochs=5", "eval.generate=false"),
        *("eval.perplexity_windows=6", "job.sequential.batch=2", "job.sequential.checkpoints=[2,4]"),
    ]
    said = program.call(home, *(["-m"] if several else []), *settings, *overrides, succeeds=succeeds)
    return " ".join(said.split())


def test_orders_are_runs_of_their_own_that_belong_together(home: Path) -> None:
    run(home, "data.limit=6", "data.order=null,0,1", f"store={home / 'orders'}", several=True)
    stored = [one for one in Store(home / "orders").runs() if one.state == "finished"]
    assert sorted(str(one.summary["order"]) for one in stored) == ["0", "1", "None"]
    assert len({one.id for one in stored}) == 3
    [together] = by_order(stored)
    assert set(together) == {None, 0, 1}
    ids = {order: [record["id"] for record in records_in(one.path)] for order, one in together.items()}
    assert ids[None] == SUBJECTS[:6]
    assert ids[0] != ids[1]
    assert sorted(ids[0]) == sorted(ids[1]) == sorted(SUBJECTS[:6])


def test_a_collapse_stop_ends_the_run_and_says_so(home: Path) -> None:
    more = ["job.sequential.collapse_stop.reliability=1.0", "editor.epochs=1", "editor.lr=1e-6"]
    output = run(home, *more, f"store={home / 'stop'}")
    [stored] = [one for one in Store(home / "stop").runs() if one.state == "finished"]
    assert (
        "ended by the collapse stop: after 2 edits the reliability (token accuracy) is 0, below the limit of 1"
        in output
    )
    assert "8 were asked for" in output
    found = stored.summary
    assert (found["n_facts"], found["stopped"]["t"], found["stopped"]["n_facts_asked_for"]) == (2, 2, 8)
    assert "finished already" in run(home, *more, f"store={home / 'stop'}")


def test_kept_edits_are_measured_again_and_the_rest_survives_or_not(home: Path) -> None:
    folder = home / "kept"
    more = ["job.sequential.keep_edits=true", "job.sequential.ends=2", "job.sequential.fine_tuning.steps=2"]
    small = ["job.sequential.fine_tuning.text.tokens=320", "job.sequential.fine_tuning.text.length=16"]
    output = run(home, *more, *small, f"hydra.run.dir={folder}")
    assert "all edits so far after T of them" in output
    assert "all after fine-tuning on unrelated text" in output
    assert (folder / "curve.png").stat().st_size > 10_000
    assert not (folder / "before").exists()
    found = summary_in(folder)
    assert [point["t"] for point in found["curve"]] == [2, 4, 8]
    assert found["batch"] == 2
    assert found["first"]["token_accuracy"]["n"] == found["latest"]["token_accuracy"]["n"] == 2
    assert found["fine_tuning"]["before"]["token_accuracy"] == found["retention"]["token_accuracy"]
    output = program.call(home, "job=measure_again", f"job.run={folder}", "job.t=4", "eval.perplexity_windows=3")
    assert "the edits in force after 4 edits, measured again" in " ".join(output.split())
    again = json.loads((folder / "again-0004.json").read_text())
    assert "preservation" not in found["curve"][1]["metrics"]
    assert again["metrics"]["efficacy_magnitude"]["after"] == pytest.approx(
        found["curve"][1]["metrics"]["efficacy_magnitude"]["after"], abs=1e-5
    )
    assert "free_generation_strict" in again["metrics"]  # eval=full measures it now
    assert "job.run=FOLDER" in program.call(home, "job=measure_again", succeeds=False)
    assert read_run(folder).state == "finished"


def test_settings_that_cannot_be_are_said_at_once(home: Path) -> None:
    for wrong, why in (
        ("job.sequential.collapse_stop.reliability=2", "CollapseStopSettings: reliability=2 must be"),
        ("job.sequential.regime=together", "batch=2 and regime='together' exclude each other"),
        ("data.order=-1", "data.order=-1 must be"),
        ("job.sequential.fine_tuning.weights=some", "must be one of all, lora"),
    ):
        assert why in run(home, wrong, succeeds=False)
