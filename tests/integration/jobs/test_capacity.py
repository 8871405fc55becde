import shutil
from pathlib import Path

import program
import tiny
from run_parts import summary_in

from jobs.capacity.results import Capacity


def test_the_job_and_its_resumption(tmp_path: Path) -> None:
    lm = tiny.build_byte_level()
    lm.model.config.max_position_embeddings = 128
    lm.model.save_pretrained(tmp_path / "model")
    lm.tokenizer.save_pretrained(tmp_path / "model")
    asked = ("capacity", "model=own", "model.name=model", "editor=none", "job.counts=[1,5]", "job.at_least=2")
    said = program.call(tmp_path, *asked, "hydra.run.dir=first")
    folder = tmp_path / "first"
    assert "none: nothing is held at the smallest count" in " ".join(said.split())
    assert (folder / "capacity.png").stat().st_size > 1000
    found = Capacity.load(folder / "result").curves["none"]
    assert [(point.count, point.edits, len(point.subjects)) for point in found] == [(1, 2, 2), (5, 1, 5)]
    summary = summary_in(folder)
    assert summary["ways"]["none"]["points"][0]["bits_per_fact"] == 0
    lines = (folder / "cases.jsonl").read_text()
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "result")
    program.call(tmp_path, "resume=first")
    assert summary_in(folder) == summary
    assert (folder / "cases.jsonl").read_text() == lines
