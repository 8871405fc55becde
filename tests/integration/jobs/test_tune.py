import json
import shutil
from pathlib import Path

import program
import pytest
import yaml
from run_parts import SMALL_EDITOR, make_home, record, summary_in, timeless


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("tune"), [record(number, generation=[]) for number in range(6)])


def call(home: Path, *overrides: str, model: str = "own", limit: int = 2, succeeds: bool = True) -> str:
    small = [
        *SMALL_EDITOR,
        "editor.value.steps=4",
        "eval.max_new_tokens=3",
        "eval.perplexity_windows=3",
        "eval.fluency_tokens=4",
    ]
    named = [f"model.name={home / 'model'}"] if model == "own" else []
    data = ["data=facts", f"data.path={home / 'facts.jsonl'}", f"data.limit={limit}"]
    return program.call(
        home, *overrides, f"model={model}", *named, *data, "model.device=cpu", *small, succeeds=succeeds
    )


TUNE = (
    *("job=tune", "editor=memit", "mode=batch", "editor.tokens_per_coefficient=0", "job.trials=5"),
    *("job.most_drift=null", "job.metrics=[efficacy_success,neighbourhood_success]"),
    *("job.locator.window=2", "job.locator.noise.samples=2"),
)


@pytest.fixture(scope="module")
def tuned(home: Path) -> Path:
    out = call(home, *TUNE, "hydra.run.dir=tuned")
    assert "tuning on 2 facts: fact-0, fact-1" in out
    assert (
        f"take it: --config-dir {home}/tuned/conf model=model-tuned editor=memit data.disjoint_from={home}/tuned" in out
    )
    return home / "tuned"


def test_what_a_run_leaves(tuned: Path) -> None:
    trials = timeless(tuned)
    assert [trial["number"] for trial in trials] == [0, 1, 2, 3, 4]
    assert trials[0]["settings"] == {}
    assert len({json.dumps(trial["params"]) for trial in trials}) == 5
    for trial in trials:
        assert trial["error"] == ""
        shares = [trial["metrics"][key]["after"] for key in ("efficacy_success", "neighbourhood_success")]
        harmonic = 0.0 if 0 in shares else 2 / sum(1 / share for share in shares)
        assert trial["value"] == pytest.approx(harmonic)
    summary = summary_in(tuned)
    assert summary["value"] == max(trial["value"] for trial in trials)
    assert summary["facts"] == ["fact-0", "fact-1"]
    assert json.loads((tuned / "tuning.json").read_text()) == summary
    page = (tuned / "tuning.md").read_text()
    assert page.count("\n| ") == 1 + 5
    assert "fact-0, fact-1." in page
    assert (tuned / "tuning.png").stat().st_size > 1000


def test_a_killed_run_goes_on_and_tries_the_same(home: Path, tuned: Path) -> None:
    cut = home / "cut"
    shutil.copytree(tuned, cut)
    lines = (cut / "cases.jsonl").read_text().splitlines(keepends=True)
    (cut / "cases.jsonl").write_text("".join(lines[:2]) + lines[2][:40])  # killed while it wrote the third
    for name in ("summary.json", "records.sha256", "tuning.md", "conf/model/model-tuned.yaml"):
        (cut / name).unlink()
    for number in ("0003", "0004"):
        shutil.rmtree(cut / "trials" / number)
    out = call(home, *TUNE, "resume=cut")
    assert "trial 1 (" not in out
    assert "trial 2 (" in out
    assert timeless(cut) == timeless(tuned)
    # And further, where more trials are asked for; the tuned model may get another name.
    call(home, "resume=cut", *TUNE, "job.trials=6", "job.model=mine")
    assert (cut / "conf/model/mine.yaml").is_file()
    assert timeless(cut)[:5] == timeless(tuned)
    assert len(timeless(cut)) == 6


def test_a_later_run_takes_the_settings(home: Path, tuned: Path) -> None:
    written = tuned / "conf/model/model-tuned.yaml"
    content = yaml.safe_load(written.read_text())
    settings = {"layers": [1], "ratio": 0.125}  # whatever the best was: these are no defaults
    content["tuned"]["memit"]["settings"] = settings
    conf = home / "later/model"
    conf.mkdir(parents=True)
    (conf / "model-tuned.yaml").write_text(yaml.safe_dump(content))
    later = ["--config-dir", str(home / "later"), "editor=memit", "mode=batch", "editor.tokens_per_coefficient=0"]
    out = call(home, *later, "hydra.run.dir=taken", model="model-tuned")
    config = yaml.safe_load((home / "taken/config.yaml").read_text())
    assert {key: config["editor"][key] for key in settings} == settings
    assert "tuned" not in config["model"]
    log = out + (home / "taken/run.log").read_text()
    assert "as tuned for this model: editor.layers=[1], editor.ratio=0.125" in log
    assert "2 of 2 facts are among those on which the model's settings were tuned (the first: fact-0, the id)" in log
    asked = program.call(home, "ask", "the tower is", *later[:2], "model=model-tuned", "max_new_tokens=3")
    assert "the tower is" in asked  # a job without a folder of its own takes the model as well
    # The command line goes before it; other facts and other editors have nothing to do with it.
    out = call(home, *later, "editor.ratio=2.0", "data.offset=2", "hydra.run.dir=given", model="model-tuned")
    config = yaml.safe_load((home / "given/config.yaml").read_text())
    assert (config["editor"]["layers"], config["editor"]["ratio"]) == ([1], 2.0)
    assert "are among those" not in out + (home / "given/run.log").read_text()


def test_scored_facts_are_kept_apart(home: Path, tuned: Path) -> None:
    apart = ["editor=memit", "mode=batch", "editor.tokens_per_coefficient=0", f"data.disjoint_from={tuned}"]
    out = call(home, *apart, succeeds=False)
    assert "fact 'fact-0' ('Danielle Darrieux') would be scored, but the id is among the 2 facts for tuning" in out
