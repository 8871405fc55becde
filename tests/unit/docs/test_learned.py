from pathlib import Path
from typing import Any

import learned
import pages
import pytest
import torch
from learned_parts import TRAINED_ON, build
from made_runs import MakeRun
from made_runs import make_run as make_run
from safetensors.torch import save_file

from editing import Malmen, Mend
from editing.learned.training import HypernetworkTraining


def points(*losses: float) -> list[dict[str, float]]:
    return [{"step": 100 * n, "loss": loss, "edit": 1.0, "kl": 0.1} for n, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("losses", "falls"),
    [((4.0, 3.0, 2.0, 1.0, 0.5), True), ((4.0, 2.0, 1.0, 1.0, 0.995), False), ((4.0, 5.0), False), ((4.0,), False)],
)
def test_a_curve_that_still_falls(losses: tuple[float, ...], falls: bool) -> None:
    found = learned.digest({"mend": {"curve": points(*losses)}})["curves"]["mend"]
    assert found["falls"] is falls
    assert (found["begin"]["loss"], found["least"]["loss"]) == (losses[0], min(losses))


def test_a_file_that_is_no_network_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a" / "mend.safetensors"
    path.parent.mkdir()
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(SystemExit, match=r"mend\.safetensors: no network with a learning curve"):
        learned.REPORT.main(["collect", "--networks", str(tmp_path), "--docs", str(tmp_path)])


def test_a_page_of_trained_networks(tmp_path: Path) -> None:
    lm, docs = build(), tmp_path / "docs"
    for editor, steps in ((Mend(), 4), (Malmen(), 2)):
        asked = HypernetworkTraining(steps=steps, every=2, rank=2, blocks=1, facts=1)
        asked.network(lm, editor, TRAINED_ON).save(tmp_path / lm.fingerprint / f"{editor.name}.safetensors")
    learned.REPORT.main(["collect", "--networks", str(tmp_path), "--docs", str(docs)])
    learned.REPORT.main(["page", "--docs", str(docs)])
    [(model, found)] = pages.read_data("learned", docs)["figures"]["models"].items()
    assert model == lm.name
    assert {editor: one["steps"] for editor, one in found.items()} == {"mend": 4, "malmen": 2}
    assert [point["step"] for point in found["mend"]["curve"]] == [0, 2, 4]
    text = (docs / "learned.md").read_text()
    assert f"| {found['mend']['curve'][0]['loss']:.3f} |" in text
    assert (docs / "figures" / "learned.png").stat().st_size > 5_000
    assert "What they then do" not in text


def test_what_editors_do_is_of_the_newest_finished_run_of_each(make_run: MakeRun, tmp_path: Path) -> None:
    def say(after: float) -> dict[str, Any]:
        success = {"before": 0.0, "after": after, "low": 0.2, "high": 0.8, "n": 2}
        return {"metrics": {"efficacy_success": success}, "n_failed": 1}

    make_run("Mend", [True, True], mode="batch", name="2026-01-01/10-00-00", said=say(0.25))
    make_run("Mend", [True, True], mode="batch", name="2026-01-02/10-00-00", said=say(0.5))
    make_run("Mend", [True, True], mode="batch", name="2026-01-03/10-00-00", said=say(0.75), finish=False)
    docs, store = tmp_path / "docs", str(tmp_path / "outputs")
    learned.REPORT.main(["collect", "--networks", str(tmp_path), "--store", store, "--docs", str(docs)])
    [rows] = pages.read_data("learned", docs)["figures"]["edits"].values()
    [(editor, row)] = rows.items()
    assert (editor, row["facts"], row["refused"], row["metrics"]["efficacy_success"]["after"]) == ("Mend", 2, 1, 0.5)
    learned.REPORT.main(["page", "--docs", str(docs)])
    text = (docs / "learned.md").read_text()
    assert "all facts in one edit" in text
    assert "| `Mend` | 2 | 1 | 50.0 [20.0, 80.0] |  |" in text
