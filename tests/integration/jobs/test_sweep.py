import importlib.util
import json
from pathlib import Path
from typing import Any

import program
import pytest
import yaml
from run_parts import ROME, SMALL_EVALUATION, SUBJECTS, assert_same, make_home, own_model, record, timeless, write

from corrigenda.runs.store import Store

SWEEP = ["editor=small_rome,in_context", "data=one,two", "seed=1"]
TWO = ["editor=small_rome,in_context", "data=two", "seed=1"]
"""Two of its runs."""

N_FACTS = 2


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, ten facts, two data sets of some of them, and the configuration of a small editor."""
    records = [record(number) for number in range(10)]
    home = make_home(tmp_path_factory.mktemp("sweep"), records)
    for folder in ("editor", "data"):
        (home / "conf" / folder).mkdir(parents=True)
    (home / "conf/editor/small_rome.yaml").write_text(f"defaults: [rome]\n{ROME}")
    for place, name in enumerate(("one", "two")):
        (home / f"conf/data/{name}.yaml").write_text(f"defaults: [facts]\npath: {home / name}.jsonl\n")
        write(home / f"{name}.jsonl", records[place * N_FACTS :][:N_FACTS])
    return home


def arguments_of(home: Path, store: str, *overrides: str) -> list[str]:
    return [
        *("--config-dir", str(home / "conf"), "-m"),
        *(*own_model(home), f"store={store}"),
        *SMALL_EVALUATION,
        *overrides,
    ]


def sweep(home: Path, store: str, *overrides: str, succeeds: bool = True) -> str:
    return program.call(home, *arguments_of(home, store, *overrides), succeeds=succeeds)


def scored(root: Path) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """By run the records without what is measured by the clock."""
    found = {}
    for run in Store(root).runs():
        assert run.state == "finished", f"{run.path}: {run.state} {run.problem}"
        key = (str(run.summary["editor"]), str(run.summary["data"]), int(run.config["seed"]))
        assert key not in found, f"{key} was run twice"
        found[key] = timeless(run.path)
    return found


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    sweep(home, "undisturbed", *SWEEP)
    assert len(list((home / "undisturbed" / "sweeps").glob("*/*"))) == 1  # one folder for all runs of a sweep
    return scored(home / "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "package", "extra"),
    [
        ("joblib", "hydra_plugins.hydra_joblib_launcher", "hydra.launcher.n_jobs=2"),
        ("ray", "ray", "hydra.launcher.num_cpus=2"),
    ],
)
def test_launchers_give_the_records_of_the_plain_one(
    home: Path, undisturbed: dict[Any, Any], launcher: str, package: str, extra: str
) -> None:
    if not has(package.split(".")[0]) or not has(package):
        pytest.skip(f"needs the extra '{launcher}': pip install corrigenda[{launcher}]")
    sweep(home, launcher, *TWO, f"launcher={launcher}", extra)
    found = scored(home / launcher)
    assert len(found) == 2
    assert_same(found, {key: undisturbed[key] for key in found})


@pytest.mark.slow
def test_slurm_jobs_give_the_records_of_the_plain_launcher(home: Path, undisturbed: dict[Any, Any]) -> None:
    if not has("hydra_plugins.hydra_submitit_launcher"):
        pytest.skip("needs the extra 'submitit': pip install corrigenda[submitit]")
    sweep(home, "submitit", *TWO, "launcher=submitit", "hydra/launcher=submitit_local")
    found = scored(home / "submitit")
    assert len(found) == 2
    assert_same(found, {key: undisturbed[key] for key in found})


def test_each_run_that_failed_says_why_when_it_fails(home: Path) -> None:
    said = sweep(home, "failing", "editor=small_rome", "editor.layer=7,8", "data=one", succeeds=False)
    for number, layer in enumerate((7, 8)):
        [log] = (home / "failing/sweeps").glob(f"*/*/{number}/run.log")
        line = f"[run][ERROR] - layer {layer}: the model has 4 layers, 0 to 3"
        assert line in said
        assert line in log.read_text()


@pytest.mark.slow
def test_force_runs_again(home: Path, undisturbed: dict[Any, Any]) -> None:
    forced = ["editor=in_context", "data=one", "seed=1", "force=true"]
    sweep(home, "undisturbed", *forced)
    runs = Store(home / "undisturbed").runs()
    assert len(runs) == len(undisturbed) + 1
    [new] = [run for run in runs if run.config["force"]]
    whole, kept = new.cases(), new.cases()[:1]
    (new.path / "summary.json").unlink()
    (new.path / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in kept))
    assert "was left unfinished; going on there" in sweep(home, "undisturbed", *forced)
    again = {run.path: run for run in Store(home / "undisturbed").runs()}
    assert len(again) == len(runs)
    assert again[new.path].state == "finished"
    assert [case["id"] for case in again[new.path].cases()] == [case["id"] for case in whole]
    assert again[new.path].cases()[:1] == kept  # with the seconds that they took, so they were not made again


def test_tuning_and_scoring_on_the_command_line(home: Path) -> None:
    """A run on one part, and then others that must not overlap with it. ("blue" is for tuning.)"""
    both = ["editor=none", "data=facts", f"data.path={home / 'facts.jsonl'}", "eval=probabilities"]
    sweep(home, "tuned", *both, "data.limit=3", "data.part=tune,score")
    runs = {run.config["data"]["part"]: run for run in Store(home / "tuned").runs()}
    subjects = {part: [case["fact"]["subject"] for case in run.cases()] for part, run in runs.items()}
    assert subjects == {"tune": ["blue"], "score": SUBJECTS[:3]}
    both.append(f"data.disjoint_from={runs['tune'].path}")
    said = sweep(home, "tuned", *both, "data.offset=6", "data.limit=3", succeeds=False)
    assert "fact 'fact-7' ('blue') would be scored, but the id is among the 1 facts for tuning" in said
    sweep(home, "tuned", *both, "data.offset=6", "data.limit=3", "data.part=score")


@pytest.mark.skipif(
    not has("hydra_plugins") or not has("hydra_plugins.hydra_optuna_sweeper"),
    reason="needs the extra 'optuna': pip install corrigenda[optuna]",
)
def test_optuna_finds_the_best_setting(home: Path) -> None:
    arguments = ["editor=in_context", "data=facts", f"data.path={home / 'facts.jsonl'}", "eval=probabilities"]
    template = "editor.template='{statement} {target}. ','the river . '"
    tuned = ["sweeper=optuna", "objective=paraphrase_magnitude", "hydra.sweeper.n_trials=5", "data.limit=1"]
    output = sweep(home, "optuna", *arguments, *tuned, template)
    assert "finished already" in output  # five trials of two settings
    runs = {run.config["editor"]["template"]: run for run in Store(home / "optuna").runs()}
    figures = {name: run.summary["metrics"]["paraphrase_magnitude"]["after"] for name, run in runs.items()}
    assert len(figures) == 2
    found = yaml.safe_load(next((home / "optuna").rglob("optimization_results.yaml")).read_text())
    best = max(figures, key=lambda name: figures[name])
    assert found["best_value"] == pytest.approx(figures[best])
    assert found["best_params"]["editor.template"].strip("'") == best
    assert all(run.config["data"]["part"] == "tune" for run in runs.values())
