import json
import shutil
from pathlib import Path

import program
import pytest
from omegaconf import OmegaConf
from run_parts import (
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
    write,
)
from tasks import CHOICE_TASK, only_own_tasks

from corrigenda import Edit, load
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.records import records_in
from jobs.shared.base import begin


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and ten facts with prompts of every kind."""
    more = {
        "neighbourhood": ["the city of green is", "the city of nine is"],
        "locality": [{"prompt": "the capital of France is", "answer": "Paris"}],
    }
    portability = ([{"prompt": f"{subject} is in the country of", "answer": "Italy"}] for subject in SUBJECTS)
    records = [record(number, portability=probes, **more) for number, probes in enumerate(portability)]
    return make_home(tmp_path_factory.mktemp("run"), records)


def arguments_of(home: Path, *overrides: str) -> list[str]:
    named = any(override.startswith(("editor=", "resume=")) for override in overrides)
    return [*own_data(home), *SMALL_EVALUATION, *([] if named else [*SMALL_EDITOR, "editor.layer=1"]), *overrides]


def run(home: Path, *overrides: str, succeeds: bool = True) -> str:
    return program.call(home, *arguments_of(home, *overrides), succeeds=succeeds)


def kill(home: Path, arguments: list[str], folder: Path, of: str, records: int) -> None:
    """Runs until so many records are written, and kills without warning."""
    kill_at(home, arguments_of(home, *arguments), folder / f"{of}.jsonl", records)


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    run(home, f"hydra.run.dir={home / 'undisturbed'}")
    return home / "undisturbed"


def test_what_a_run_leaves_behind(home: Path, undisturbed: Path) -> None:
    summary = summary_in(undisturbed)
    expected = {"editor", "model", "data", "mode", "n_facts", "seconds_per_edit", "peak_memory_mb", "metrics"}
    assert expected <= set(summary)
    assert (summary["editor"], summary["mode"], summary["n_facts"]) == ("rome", "single", 10)
    assert all(set(values) == {"before", "after", "low", "high", "n"} for values in summary["metrics"].values())
    assert summary["metrics"]["efficacy_magnitude"]["after"] > summary["metrics"]["efficacy_magnitude"]["before"]
    assert [case["id"] for case in list(records_in(undisturbed))] == [f"fact-{n}" for n in range(10)]
    assert "torch" in json.loads((undisturbed / "versions.json").read_text())["versions"]
    assert "prefix_lengths" in (undisturbed / "config.yaml").read_text()


def test_saved_edits_give_the_scored_model(home: Path, undisturbed: Path) -> None:
    lm = load(home / "model", device="cpu")
    for case, folder in zip(list(records_in(undisturbed)), sorted((undisturbed / "edits").iterdir()), strict=True):
        with Edit.load(folder).applied(lm):
            answer = lm.generate(case["fact"]["prompt"].replace("{}", case["fact"]["subject"]), 4, stop_at_newline=True)
        assert answer == case["after"]["prompts"]["prompt"][0]["answer"]


def test_killed_twice_and_resumed(home: Path, undisturbed: Path) -> None:
    folder = home / "killed"
    finished: list[int] = []
    arguments = [f"hydra.run.dir={folder}"]
    for kill_after in (1, 6):
        kill(home, arguments, folder, "cases", kill_after)
        finished.append(n_lines(folder / "cases.jsonl"))
        with (folder / "cases.jsonl").open("a") as file:
            file.write('{"id": "cut off in the writ')  # as a kill in the middle of a line would leave it
        arguments = [f"resume={folder}"]
    assert 0 < finished[0] < 10
    assert not (folder / "summary.json").exists()
    run(home, f"resume={folder}")
    assert_same(timeless(folder), timeless(undisturbed))
    metrics = [summary_in(path)["metrics"] for path in (folder, undisturbed)]
    assert_same(metrics[0], metrics[1])


def test_resume_refuses_another_request(home: Path, undisturbed: Path) -> None:
    assert "begun with mode=single, not batch" in run(home, f"resume={undisturbed}", "mode=batch", succeeds=False)
    assert "no run in this folder" in run(home, f"resume={home / 'nothing'}", succeeds=False)


def test_a_refused_resume_changes_nothing(home: Path, undisturbed: Path) -> None:
    folder = home / "refused"
    shutil.copytree(undisturbed, folder)
    cut_short(folder, 9)
    noted = json.loads((folder / "identity.json").read_text())
    identity = {name: noted[name] for name in ("id", "model_fingerprint", "data_fingerprint")}  # as earlier versions do
    identity |= {"code": "another"}
    (folder / "identity.json").write_text(json.dumps(identity))
    content = (home / "facts.jsonl").read_text()
    (home / "facts.jsonl").write_text(content.replace("fact-9", "fact-nine"))
    try:
        assert "another data_fingerprint" in run(home, f"resume={folder}", succeeds=False)
    finally:
        (home / "facts.jsonl").write_text(content)
    assert json.loads((folder / "identity.json").read_text()) == identity
    run(home, f"resume={folder}", f"before={home / 'shared'}")
    assert [case["id"] for case in list(records_in(folder))] == [f"fact-{n}" for n in range(10)]
    assert list((home / "shared").iterdir())  # said now, so done now
    now = json.loads((folder / "identity.json").read_text())
    assert (now.keys(), now["schema"], now["dtype"]) == (noted.keys(), "plain", "float32")


def test_other_code_hides_no_other_input(home: Path, undisturbed: Path) -> None:
    """The id is another with the code; what else a run reads is noted beside it."""
    folder = home / "other_code"
    shutil.copytree(undisturbed, folder)
    cut_short(folder, 9)
    noted = json.loads((folder / "identity.json").read_text())
    (folder / "identity.json").write_text(json.dumps(noted | {"code": "another", "other_inputs": "another"}))
    assert "begun with another other_inputs (another, now" in run(home, f"resume={folder}", succeeds=False)


def test_settings_without_effect_are_named(home: Path, undisturbed: Path) -> None:
    idle = ["job.sequential.batch=7", "job.auto_layer.layers=2", "+data.limits=3", "+job.trials=9"]
    said = run(home, *SMALL_EDITOR, "data.limit=1", "eval.seed=3", *idle)
    assert "data.limits: there is no such setting; did you mean limit?" in said
    assert "job.trials: there is no such setting" in said
    assert said.count("there is no such setting") == 2
    assert "job.sequential.batch has no effect with mode=single" in said
    assert "job.auto_layer.layers has no effect with an editor whose layers are given" in said


def test_runs_of_all_editors_share_what_the_unedited_model_does(home: Path, undisturbed: Path) -> None:
    kept = home / "cache" / "before"
    names = {path.name for path in kept.iterdir()}
    assert names
    said = run(home, *SMALL_EDITOR, "editor.layer=0", "mode=batch", "eval.strict=false")
    assert f"what the unedited model does with the facts is kept in {kept} (before=null: nowhere)" in said
    assert {path.name for path in kept.iterdir()} == names
    said = run(home, *SMALL_EDITOR, "editor.layer=0", "eval.seed=7", "data.limit=1", "before=null")
    assert "before=null: nowhere" not in said
    assert {path.name for path in kept.iterdir()} == names


def test_a_run_killed_before_it_knew_what_it_works_on_goes_on(home: Path, undisturbed: Path) -> None:
    folder = home / "early"
    shutil.copytree(undisturbed, folder)
    cut_short(folder, 9)
    identity = json.loads((folder / "identity.json").read_text())
    (folder / "identity.json").unlink()
    run(home, f"resume={folder}")
    assert json.loads((folder / "identity.json").read_text()) == identity
    assert len(list(records_in(folder))) == 10


def test_a_layer_that_is_none_is_no_failed_edit(home: Path) -> None:
    wrong = ["data.limit=1", "eval=probabilities"]
    assert "layer 99" in run(home, "editor=finetune", "editor.layer=99", *wrong, succeeds=False)
    nested = ["editor=random", "editor.like.layer=auto"]
    assert "layer='auto' must be a whole number" in run(home, *nested, *wrong, succeeds=False)
    assert "harness_tasks='arc_easy' must be a list" in run(home, "eval.harness_tasks=arc_easy", *wrong, succeeds=False)


def test_only_a_finished_run_says_what_it_used(home: Path, undisturbed: Path) -> None:
    folder = home / "half"
    shutil.copytree(undisturbed, folder)
    cut_short(folder, 0)
    output = run(home, f"data.disjoint_from={folder}", succeeds=False)
    assert "this run is unfinished (job edit)" in output


def test_batch(home: Path) -> None:
    run(home, "mode=batch", f"hydra.run.dir={home / 'batch'}")
    summary = summary_in(home / "batch")
    assert summary["mode"] == "batch"
    assert summary["metrics"]["efficacy_magnitude"]["after"] > summary["metrics"]["efficacy_magnitude"]["before"]
    assert len(list((home / "batch" / "edits").iterdir())) == 1
    cases = list(records_in(home / "batch"))
    cut_short(home / "batch", 3)
    run(home, f"resume={home / 'batch'}")
    assert list(records_in(home / "batch")) == cases


def test_harness_tasks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval", reason="needs the package lm_eval (the extra harness)")
    only_own_tasks(monkeypatch)
    tasks = home / "tasks"
    tasks.mkdir(exist_ok=True)
    questions = [("the city of Thomas is", ["Berlin", "London"]), ("the city of tower is", ["Paris", "London"])]
    write(tasks / "questions.jsonl", [{"question": q, "choices": choices, "answer": 0} for q, choices in questions])
    (tasks / "cities.yaml").write_text(CHOICE_TASK.format(name="cities", data=tasks / "questions.jsonl"))
    asked = ["eval.harness_tasks=[cities]", f"eval.harness_folder={tasks}", "data.limit=2"]
    folder = home / "harness"
    said = run(home, "mode=batch", *asked, f"hydra.run.dir={folder}")
    found = summary_in(folder)["harness"]["cities"]["acc"]
    assert found["before"] in (0.0, 0.5, 1.0)
    assert found["after"] in (0.0, 0.5, 1.0)
    assert "cities" in said
    refused = run(home, "mode=single", *asked, succeeds=False)
    assert "mode=batch" in refused


def test_a_run_is_not_begun_over_another(home: Path, undisturbed: Path) -> None:
    before = (undisturbed / "config.yaml").read_text()
    said = run(home, f"hydra.run.dir={undisturbed}", "seed=5", succeeds=False)
    assert "holds a run" in said
    assert (undisturbed / "config.yaml").read_text() == before
    with pytest.raises(FileExistsError, match="holds another run"):
        begin(OmegaConf.create({}), RunFolder(undisturbed))
