import json
from pathlib import Path

import program
import pytest
import tiny
from run_parts import make_home, own_model, summary_in

from jobs.lens import PARTS
from locate.lens.agreement import Agreement
from locate.lens.triggers import Triggers

SMALL = ["job=lens", "job.text.tokens=240", "job.text.length=12", "job.triggers=4", "job.neurons=2"]
SMALL += ["job.removed_from=1", "job.texts=6", "job.events=3", "job.examples=2"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("lens"))


def run(home: Path, *overrides: str, succeeds: bool = True) -> str:
    return program.call(home, *own_model(home), *overrides, succeeds=succeeds)


def test_results_pictures_and_resumption(home: Path) -> None:
    out = run(home, *SMALL, "hydra.run.dir=lens")
    folder = home / "lens"
    assert "results and pictures in" in out
    summary = summary_in(folder)
    assert set(summary) == {"model", *PARTS}
    assert summary["triggers"]["neurons"] == tiny.DEPTH * 48
    assert summary["aggregation"]["positions"] == 6
    for name in PARTS:
        assert (folder / f"{name}.png").stat().st_size > 1000
        assert name == "triggers" or PARTS[name].load(folder / "results" / name).summary() == summary[name]
    assert len(summary["values"]["layers"]) == tiny.DEPTH
    assert summary["sub_updates"]["positions"] == 3
    examples = json.loads((folder / "examples.json").read_text())
    assert len(examples) == 2 * tiny.DEPTH
    assert [len(each["triggers"]) for each in examples] == [4] * len(examples)
    assert set(examples[0]["triggers"][0]) == {"prefix", "next_token", "coefficient", "text", "position"}
    # Cut short after two parts: those are not found again, and the rest comes to the same.
    (folder / "summary.json").unlink()
    for name in ("agreement", "aggregation"):
        for file in (folder / "results" / name).iterdir():
            file.unlink()
    kept = Triggers.load(folder / "results" / "triggers")
    for file in (home / "cache" / "triggers").glob("*/*"):
        file.unlink()
    run(home, "resume=lens")
    assert not list((home / "cache" / "triggers").glob("*/*"))
    assert summary_in(folder) == summary
    assert Agreement.load(folder / "results" / "agreement").next_tokens.shape == kept.prefixes.shape
    assert "lens" in run(home, "job=runs", f"store={home}")
