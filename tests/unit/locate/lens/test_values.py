from pathlib import Path

import pytest
import tiny
import torch
from malformed_parts import refused

from corrigenda import LanguageModel
from corrigenda.edits.low_rank import LowRankEdit
from corrigenda.edits.origin import Origin
from locate.lens import values
from locate.lens.values import highest, read_values


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_values_are_read_as_by_hand(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build(family)
    if family == "olmo":  # its norm has no weight
        gamma = torch.ones(tiny.WIDTH)
    else:
        drawn = torch.rand(tiny.WIDTH, generator=torch.Generator().manual_seed(0))
        lm.architecture.final_norm.weight.data.copy_(0.5 + drawn)
        gamma = lm.architecture.final_norm.weight + (1 if family.startswith("gemma") else 0)
    monkeypatch.setattr(values, "ROWS", 20)
    monkeypatch.setattr(values, "BLOCK", 8)
    found = read_values(lm, k=3)
    d_ffn = lm.memory(0).d_ffn
    assert found.ids.shape == found.scores.shape == (2, tiny.DEPTH, d_ffn, 3)
    for layer in range(tiny.DEPTH):
        scores = (lm.memory(layer).values * gamma) @ lm.model.get_output_embeddings().weight.T
        for side, sign in enumerate((1, -1)):
            best = (sign * scores).topk(3).values
            # Of two words that are alike either may be first.
            of_ids = (sign * scores).gather(1, found.ids[side, layer].long())
            for each in (found.scores[side, layer], of_ids):
                assert torch.allclose(each, best, rtol=1e-4, atol=1e-4)
            peak = (sign * scores).softmax(-1).amax(-1)
            assert torch.allclose(found.probabilities[side, layer], peak, rtol=1e-3, atol=1e-6)
    words = found.words(2, 5, -1)
    assert words.ids == tuple(found.ids[1, 2, 5].tolist())
    assert words.texts[0] == lm.tokenizer.decode([words.ids[0]])


@pytest.mark.parametrize("width", [7, 640, 641, 700])
def test_the_highest_are_those_of_topk(width: int) -> None:
    scores = torch.randn(5, width, generator=torch.Generator().manual_seed(width))
    best, ids = highest(scores, 4)
    expected, places = scores.topk(4)
    assert torch.equal(best, expected)
    assert torch.equal(ids, places)
    least, _ = highest(-scores.abs() - 5, 4)  # nothing above zero: what is filled in must not win
    assert torch.equal(least, (-scores.abs() - 5).topk(4).values)


def test_they_are_kept_on_disk_and_are_the_unedited_models(lm: LanguageModel, tmp_path: Path) -> None:
    first = read_values(lm, [-1, 0], k=2)
    assert first.layers == (3, 0)
    files = sorted((tmp_path / "cache" / "values").iterdir())
    stamps = [file.stat().st_mtime_ns for file in files]
    assert len(files) == 2
    memory, draw = lm.memory(1), torch.Generator().manual_seed(0)
    a, b = torch.randn(memory.d_ffn, 1, generator=draw), torch.randn(1, memory.d_model, generator=draw)
    edit = LowRankEdit.of(lm, Origin(lm.name, lm.fingerprint, "by hand"), {1: (a, b)})
    with edit.applied(lm):
        edited = read_values(lm, k=2)
    assert [file.stat().st_mtime_ns for file in files] == stamps
    other = tiny.build("llama")
    files[0].unlink()
    assert torch.equal(read_values(other, k=2).ids, edited.ids)
    assert torch.equal(edited.ids[:, [3, 0]], first.ids)


def test_values_are_found_by_the_tokens_they_promote() -> None:
    lm = tiny.build("gpt2")
    memory = lm.memory(2)
    token = lm.tokenizer.convert_tokens_to_ids("Rome")
    weight = lm.model.get_output_embeddings().weight
    memory.values[7] = -50 * weight[token]
    found = read_values(lm, k=5)
    layer, neuron, sign, score = found.promoters(token)[0]
    assert (layer, neuron, sign) == (2, 7, -1)
    assert score == float(found.scores[1, 2, 7, 0])
    assert found.words(2, 7, -1).texts[0] == "Rome"
    assert found.most_peaked(1) == found.most_peaked(1, sign=-1)
    assert found.most_peaked(1)[0][:3] == (2, 7, -1)
    assert all(place[2] == 1 for place in found.most_peaked(20, sign=1))
    assert len(found.most_peaked(10**6)) == 2 * tiny.DEPTH * memory.d_ffn


def test_bad_input_is_refused(lm: LanguageModel) -> None:
    refused(ValueError, "k=0", read_values, lm, k=0)
    refused(IndexError, "layer 9", read_values, lm, [9])
    found = read_values(lm, [1], k=1)
    refused(IndexError, "layer 0 was not read; the layers are 1", found.words, 0, 0)
    refused(IndexError, "neuron 48", found.words, 1, 48)
    refused(ValueError, "sign=0", found.words, 1, 0, 0)
