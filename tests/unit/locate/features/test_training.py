import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from malformed_parts import refused

from corrigenda import LanguageModel
from corrigenda.dictionaries.dictionary import FeatureDictionary
from corrigenda.errors import SettingsError, UnsupportedModelError, WrongModelError
from locate.features import training
from locate.features.training import DictionaryTraining, auxk, learning_scores

SMALL: dict[str, Any] = {"layer": 1, "features": 48, "k": 4, "shipped": 640, "sampled": 0, "length": 16, "held_out": 4}
SMALL |= {"batch": 64, "buffer": 256, "tokens": 2000, "every": 2, "lr": 3e-3, "dead_after": 300}


lm = pytest.fixture(tiny.llama, scope="module")


@pytest.mark.parametrize("more", [{}, {"reads": "input"}, {"multi_topk": True}], ids=["sae", "transcoder", "multi"])
def test_the_loss_goes_down_and_rows_are_unit(lm: LanguageModel, more: dict[str, Any]) -> None:
    asked = DictionaryTraining(**SMALL | more)
    one, curve = asked.train(lm, asked.texts(lm)[0])
    assert [point["tokens"] for point in curve] == [256.0 * n for n in range(1, 9)]
    assert curve[-1]["unexplained"] < 0.8 * curve[0]["unexplained"]
    assert torch.allclose(one.decoder.norm(dim=1), torch.ones(48), atol=1e-6)
    assert (one.reads, one.centred) == (asked.reads, asked.reads == "output")
    assert (one.skip is not None) == (asked.reads == "input")


def test_killed_and_gone_on_with_is_as_if_never_killed(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = DictionaryTraining(**SMALL)
    texts, held = asked.texts(lm)
    assert (len(texts), len(held)) == (36, 4)
    whole, curve = asked.train(lm, texts)
    assert curve[-1]["dead"] > 0  # so that the count of silent tokens has to be kept, too
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "another"))
    steps: list[int] = []
    step = training._Training._step

    def killed(self: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        steps.append(len(x))
        if len(steps) == 20:
            raise KeyboardInterrupt
        return step(self, x, y)

    monkeypatch.setattr(training._Training, "_step", killed)
    with pytest.raises(KeyboardInterrupt):
        asked.train(lm, texts)
    again, gone_on = asked.train(lm, texts)
    assert len(steps) == 20 + 16  # 32 in all, of which the 16 of the four buffers that were kept are not made again
    assert again.fingerprint == whole.fingerprint
    assert gone_on == curve
    longer, _ = dataclasses.replace(asked, tokens=2400).train(lm, texts)
    assert len(steps) == 36 + 8
    assert longer.fingerprint != whole.fingerprint
    with pytest.raises(SettingsError, match=r"job.tokens=2000 .* learned from 2,560 tokens already; ask for as many"):
        asked.train(lm, texts)


def test_the_gradient_has_nothing_that_changes_a_rows_length(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[torch.Tensor] = []
    adam = torch.optim.Adam.step

    def looked_at(self: Any) -> None:
        rows = self.param_groups[0]["params"][2]
        found.append((rows.grad * rows).sum(1).abs().max())
        assert rows.grad.abs().max() > 0
        adam(self)

    monkeypatch.setattr(torch.optim.Adam, "step", looked_at)
    asked = DictionaryTraining(**SMALL | {"tokens": 500})
    asked.train(lm, asked.texts(lm)[0])
    assert max(found) < 1e-6


@pytest.mark.parametrize("centred", [True, False])
def test_scores_that_learn_have_the_gradients_of_the_formula(centred: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    sizes = ((20, 6), (20,), (20, 6), (6,))
    parts = [torch.randn(size, generator=draw, requires_grad=True) for size in sizes]
    one, x = FeatureDictionary(0, *parts, k=3, centred=centred), torch.randn(5, 6, generator=draw)
    weights = torch.randn(5, 20, generator=draw)
    encoder, bias, _, shift = parts
    plain = ((x - shift if centred else x) @ encoder.T + bias).relu()
    found = learning_scores(one, x)
    assert torch.allclose(found, plain, atol=1e-6)
    of = parts[:2] + parts[3:] * centred
    for ours, expected in zip(
        *(torch.autograd.grad((each * weights).sum(), of) for each in (found, plain)), strict=True
    ):
        assert torch.allclose(ours, expected, atol=1e-5)


def test_auxk_by_hand() -> None:
    decoder = torch.eye(4)
    one = FeatureDictionary(0, decoder, torch.zeros(4), decoder, torch.full((4,), 9.0), k=1)
    scores, error = torch.tensor([[5.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.0, 1.0, 1.0, 1.0]])
    none, one_dead = torch.tensor([False] * 4), torch.tensor([False, True, False, False])
    three = torch.tensor([False, True, True, True])
    assert float(auxk(one, scores, none, error)) == 0
    assert float(auxk(one, scores, one_dead, error)) == 0.5 * ((1 - 2) ** 2 + 1 + 1)  # d / 2 = 2, of which one is there
    assert float(auxk(one, scores, three, error)) == 1 + (1 - 3) ** 2 + (1 - 4) ** 2  # two of three, without the bias


def test_of_weights_that_were_changed_by_hand_no_dictionary_is_taken_from_the_disk() -> None:
    lm, asked = tiny.llama(), DictionaryTraining(**SMALL | {"tokens": 256})
    texts, _ = asked.texts(lm)
    asked.train(lm, texts)
    with torch.no_grad():
        lm.memory(1).values[0, 0] += 1
    with pytest.raises(WrongModelError, match="changed by hand"):
        asked.train(lm, texts)


def test_what_cannot_be_trained_is_said_in_a_line(lm: LanguageModel) -> None:
    refused(SettingsError, r"job.buffer=99 must be job.batch=100 or more", DictionaryTraining, buffer=99, batch=100)
    refused(SettingsError, r"job.length=2 must be 3 or more", DictionaryTraining, length=2)
    with pytest.raises(SettingsError, match=r"job.held_out=40 must be below 40"):
        DictionaryTraining(**SMALL | {"held_out": 40}).texts(lm)
    asked = DictionaryTraining(**SMALL)
    texts, _ = asked.texts(lm)
    refused(SettingsError, r"job.features=3 must be", dataclasses.replace(asked, features=3).train, lm, texts)
    refused(IndexError, r"layer 7: the model has 4 layers", dataclasses.replace(asked, layer=7).train, lm, texts)
    with pytest.raises(UnsupportedModelError, match="mixture of experts"):
        dataclasses.replace(asked, layer=2).train(tiny.build("mixtral"), texts)
