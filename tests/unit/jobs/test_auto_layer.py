import json
from pathlib import Path

import pytest
import tiny
import torch
from composed import composed
from omegaconf import DictConfig, OmegaConf

from corrigenda import Fact, LanguageModel
from jobs.edit import job
from jobs.shared.auto_layer import locate_layers


def settings(**editor: object) -> DictConfig:
    locator = {"_target_": "locate.CausalTrace", "window": 2, "noise": {"_target_": "locate.Noise", "samples": 2}}
    return OmegaConf.create({"editor": editor, "job": {"auto_layer": {"locator": locator, "facts": 2, "layers": 2}}})


lm = pytest.fixture(tiny.llama, scope="module")


@pytest.fixture(scope="module")
def facts(lm: LanguageModel) -> list[Fact]:
    """Three, with the answers that the model gives."""
    found = []
    for subject in ("Danielle Darrieux", "Thomas", "Big Ben"):
        logits = lm.model(torch.tensor([lm.tokens(f"the city of {subject} is")])).logits
        found.append(Fact(subject, "the city of {} is", "seven", lm.tokenizer.decode([int(logits[0, -1].argmax())])))
    return found


def test_the_field_that_is_auto_is_set(lm: LanguageModel, facts: list[Fact], tmp_path: Path) -> None:
    one, several, both = settings(layer="auto"), settings(layers="auto", layer=7), settings(layer=1, layers=[0])
    for config in (one, several, both):
        locate_layers(config, tmp_path, lm, facts)
    assert one.editor.layer in range(tiny.DEPTH)
    assert several.editor.layer == 7
    assert len(several.editor.layers) == 2
    assert list(several.editor.layers) == sorted(several.editor.layers)
    assert one.editor.layer in several.editor.layers
    assert both.editor == {"layer": 1, "layers": [0]}
    kept = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("layer", "layers")}
    assert kept["layer"]["layer"] == one.editor.layer
    assert kept["layers"]["layers"] == list(several.editor.layers)
    assert len(kept["layers"]["facts"]) == 2


@pytest.mark.parametrize(("number", "found"), [(1, 1), (2, 2), (None, 3)])
def test_an_editor_gets_as_many_layers_as_it_writes(
    lm: LanguageModel, facts: list[Fact], tmp_path: Path, number: int | None, found: int
) -> None:
    config = settings(layers="auto", **({} if number is None else {"number": number}))
    config.job.auto_layer.layers = None
    locate_layers(config, tmp_path, lm, facts)
    assert len(config.editor.layers) == found


@pytest.mark.parametrize("name", ["rome", "memit", "emmet", "grace_wide", "finetune", "lora"])
def test_an_editor_may_wait_for_its_layers(name: str) -> None:
    config = composed(f"editor={name}")
    job._check(composed(f"editor={name}", f"editor.{'layers' if 'layers' in config.editor else 'layer'}=auto"))


def test_a_run_that_goes_on_keeps_its_layers(tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text('{"layers": [3, 5], "why": "so", "facts": ["a"]}')
    config = settings(layers="auto")
    locate_layers(config, tmp_path, lm=None, facts=[])  # type: ignore[arg-type]
    assert config.editor.layers == [3, 5]


def test_a_model_that_knows_nothing_gives_no_layer(lm: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"editor\.layers=auto: .* knows none of the 0 facts; name a layer"):
        locate_layers(settings(layers="auto"), tmp_path, lm, [])
    with pytest.raises(ValueError, match=r"with editor\.position=relation name a layer"):
        locate_layers(settings(layer="auto", position="relation"), tmp_path, lm, [])
