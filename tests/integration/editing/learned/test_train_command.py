import json
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import program
import pytest
import tiny
from learned_parts import TRAINED_ON, assert_same, has_steps, steps_kept

from editing.learned import training
from editing.learned.counterfactual import CounterfactualNetwork
from editing.learned.hypernetwork import Hypernetwork, LayersNetwork, TrainedNetwork


@pytest.mark.parametrize(("editor", "kind"), [("mend", Hypernetwork), ("serac", CounterfactualNetwork)])
def test_a_killed_training_ends_the_same(tmp_path: Path, editor: str, kind: type[LayersNetwork]) -> None:
    tiny.build("llama", scale=8.0).save_pretrained(tmp_path / "model")
    (tmp_path / "facts.json").write_text(json.dumps([fact.to_dict() for fact in TRAINED_ON]))
    command = ["train", f"editor={editor}", "model=own", f"model.name={tmp_path / 'model'}", "data=facts"]
    command += ["data.path=facts.json", "job.steps=12", "job.every=2", "job.rank=4", "job.edits=1", "job.facts=2"]
    cache = tmp_path / "cache" / "hypernetworks"
    program.killed(tmp_path, *command, when=partial(has_steps, cache, editor, 4))
    assert 4 <= steps_kept(cache, editor) < 12
    assert not list(cache.rglob(f"{editor}.safetensors"))
    program.call(tmp_path, *command)
    [path] = cache.rglob(f"{editor}.safetensors")
    found = TrainedNetwork.load(path, kind)
    cache.rename(tmp_path / "killed")
    program.call(tmp_path, *command)
    assert_same(found, TrainedNetwork.load(path, kind))
    assert [point["step"] for point in found.made["curve"]] == [0, 2, 4, 6, 8, 10, 12]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.build("llama", scale=8.0).save_pretrained(tmp_path / "model")
    (tmp_path / "facts.json").write_text(json.dumps([fact.to_dict() for fact in TRAINED_ON]))
    (tmp_path / "scored.json").write_text(json.dumps([TRAINED_ON[3].to_dict()]))
    command = ["train", "model=own", f"model.name={tmp_path / 'model'}", "data=facts", "data.path=facts.json"]
    command += ["job.steps=2", "job.rank=4", "job.edits=2"]
    said = program.call(tmp_path, *command, "editor.layers=[1,3]")
    assert "network of mend for" in said
    assert "that of step" in said
    [path] = (tmp_path / "cache" / "hypernetworks").rglob("mend.safetensors")
    assert [one.id for one in TrainedNetwork.load(path, Hypernetwork).facts] == [fact.id for fact in TRAINED_ON]
    said = program.call(tmp_path, *command, "data.disjoint_from=scored.json", succeeds=False)
    assert "fact 'native' ('Thomas')" in said
    said = program.call(tmp_path, *command, "editor=rome", succeeds=False)
    assert "editor=rome has no network to train: take editor=mend, editor=malmen or editor=serac" in said
    monkeypatch.setattr(training._Training, "learn", Mock(side_effect=KeyboardInterrupt))
    said = program.call(tmp_path, *command, "job.seed=1", succeeds=False)
    assert "interrupted; what it learned is kept; give the same command again, which goes on" in said
