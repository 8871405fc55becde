from pathlib import Path

import pytest
import tiny
import torch
from dictionary_parts import SMALL

from corrigenda.dictionaries.dictionary import FeatureDictionary
from corrigenda.dictionaries.layouts import read_dictionary, write_dictionary
from jobs.dictionary import DictionarySettings, figures_of
from locate.features.figures import randomised


def test_the_control_of_a_dictionary_that_is_read_is_of_its_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    lm, draw = tiny.build("llama"), torch.Generator().manual_seed(0)
    encoder, skip = torch.randn(40, tiny.WIDTH, generator=draw), torch.zeros(tiny.WIDTH, tiny.WIDTH)
    one = FeatureDictionary(
        1, encoder, torch.zeros(40), encoder, torch.zeros(tiny.WIDTH), k=5, skip=skip, reads="input"
    )
    given = write_dictionary(one, tmp_path / "given")
    asked = DictionarySettings(dictionary=str(given), control=True, tokens=500, k=4, **SMALL)
    figures = figures_of(asked, lm, randomised(lm), tmp_path / "random")
    control = read_dictionary(tmp_path / "random" / "layers.1.mlp")
    assert (figures.layer, figures.reads, len(figures.firing), control.k) == (1, "input", 40, 5)
