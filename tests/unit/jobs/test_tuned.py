from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from corrigenda.errors import SettingsError
from jobs.shared.tuned import _lasting_name, take_tuned, tuned_name, write_tuned

MODEL = {"name": "some/model", "dtype": "bfloat16", "device": "cpu", "revision": None, "trust_remote_code": False}


def configuration(tuned: Any) -> DictConfig:
    editor = {"_target_": "editing.Memit", "layers": [], "ratio": 1.0, "value": {"lr": 0.5}}
    found = OmegaConf.create({"model": MODEL | {"tuned": tuned}, "editor": editor, "data": {"path": "x"}})
    OmegaConf.set_struct(found, True)
    return found


def entry(**settings: Any) -> dict[str, Any]:
    return {"memit": {"target": "editing.Memit", "settings": settings, "facts": "/facts.jsonl"}}


def test_the_editor_gets_the_settings() -> None:
    config = configuration(entry(layers=[2, 3], **{"value.lr": 0.25}))
    take_tuned(config, "memit", [])
    editor = {"_target_": "editing.Memit", "layers": [2, 3], "ratio": 1.0, "value": {"lr": 0.25}}
    assert config.editor == editor
    assert config.model == MODEL
    assert config.data.tuned_on == "/facts.jsonl"


def test_the_command_line_goes_before_them() -> None:
    config = configuration(entry(layers=[2, 3], ratio=3.0))
    take_tuned(config, "memit", ["editor.ratio", "editor.number"])
    assert (config.editor.layers, config.editor.ratio) == ([], 1.0)
    assert "tuned_on" not in config.data  # nothing of it was taken
    config = configuration(entry(ratio=3.0, **{"value.lr": 0.25}))
    take_tuned(config, "memit", ["editor.value"])
    assert (config.editor.ratio, config.editor.value.lr) == (3.0, 0.5)


@pytest.mark.parametrize("choice", ["rome", "memit_blue"])
def test_other_editors_have_nothing_to_do_with_it(choice: str) -> None:
    config = configuration(entry(ratio=3.0))
    take_tuned(config, choice, [])
    assert config.editor.ratio == 1.0
    assert config.model == MODEL
    config = configuration(entry(ratio=3.0))
    config.editor._target_ = "mine.Memit"  # of a configuration of the same name
    take_tuned(config, "memit", [])
    assert config.editor.ratio == 1.0


def test_a_model_without_them_stays_as_it_is() -> None:
    config = OmegaConf.create({"model": MODEL, "editor": {"ratio": 1.0}, "data": {}})
    take_tuned(config, "memit", [])
    assert config == {"model": MODEL, "editor": {"ratio": 1.0}, "data": {}}


def test_a_damaged_file_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"model\.tuned\.memit must have the key settings"):
        take_tuned(configuration({"memit": {"layers": [1]}}), "memit", [])
    with pytest.raises(SettingsError, match=r"model\.tuned\.memit\.settings: the editor has no setting beauty"):
        take_tuned(configuration(entry(beauty=1)), "memit", [])


def test_the_file(tmp_path: Path) -> None:
    facts = tmp_path / "facts.jsonl"
    model = OmegaConf.create(MODEL)
    editor = OmegaConf.create({"_target_": "editing.Memit", "value": {"lr": 0.5, "steps": 7}, "seed": 3, "number": 5})
    best = {"layers": [1], "value.lr": 0.25}
    path = write_tuned(tmp_path, "mine", model, editor, "memit", best, facts, "trial 3", ["number"])
    rome = OmegaConf.create({"_target_": "editing.Rome"})
    write_tuned(tmp_path, "mine", model, rome, "rome", {"layer": 4}, facts, "trial 1")
    write_tuned(tmp_path, "mine", model, rome, "rome", {"layer": 5}, facts, "trial 2 of\nanother run")
    assert path == tmp_path / "model/mine.yaml"
    found = yaml.safe_load(path.read_text())
    # Beside what was found is what it was found beside, and is no default, or was named.
    assert found["tuned"]["memit"]["settings"] == {"value.steps": 7, "number": 5, **best}
    assert found["tuned"]["rome"] == {"target": "editing.Rome", "settings": {"layer": 5}, "facts": str(facts)}
    assert (found["name"], found["dtype"], "device" in found) == ("some/model", "bfloat16", False)
    assert path.read_text().splitlines()[1:3] == ["# editor=memit: trial 3", "# editor=rome: trial 2 of another run"]
    other = OmegaConf.create(MODEL | {"name": "another/model"})
    with pytest.raises(FileExistsError, match=r"is of the model some/model; give job\.model= another name"):
        write_tuned(tmp_path, "mine", other, rome, "rome", {}, facts, "")


def test_the_model_is_the_one_that_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load` takes a model that travels in wheels before a folder of its name, and a folder before a hub's."""
    monkeypatch.chdir(tmp_path)
    for name, lasting in (("smollm2-135m", "smollm2-135m"), ("gpt2", str(tmp_path / "gpt2"))):
        (tmp_path / name).mkdir()
        assert _lasting_name(OmegaConf.create({"name": name})) == lasting


def test_names() -> None:
    assert tuned_name(None, "owner/Some-Model 1.5") == "owner-Some-Model-1.5-tuned"
    assert tuned_name(None, "/a/folder/model") == "model-tuned"
    assert tuned_name("mine", "owner/model") == "mine"
