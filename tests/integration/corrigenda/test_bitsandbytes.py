from pathlib import Path

import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from corrigenda import Fact, LanguageModel, UnsupportedModelError, load
from editing import Grace, Memit, Rome

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

FACT = Fact(id="a", subject="Thomas", prompt="{} is in the city of", target_new="Rome", target_true="Paris")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A tiny Llama as it is, and its checkpoint in 8 bits."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    plain, packed = tmp_path / "plain", tmp_path / "int8"
    lm = tiny.build("llama")
    lm.save_pretrained(plain)
    settings = BitsAndBytesConfig(load_in_8bit=True)
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings, device_map="cpu")
    model.save_pretrained(packed)
    lm.tokenizer.save_pretrained(packed)
    return {"plain": plain, "int8": packed}


def answer(lm: LanguageModel) -> torch.Tensor:
    """The logits after the fact's prompt."""
    batch = lm.batch([lm.tokens("Thomas is in the city of")])
    with torch.no_grad():
        return lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[0, -1].float()


def test_eight_bits(folders: dict[str, Path], tmp_path: Path) -> None:
    lm, plain = load(folders["int8"]), load(folders["plain"])
    assert type(lm.architecture.values(1)).__name__ == "Linear8bitLt"
    before = answer(lm)
    # It is the same model, roughly: the order of the likely tokens hardly changes.
    assert float(torch.corrcoef(torch.stack([before, answer(plain)]))[0, 1]) > 0.99
    assert load(folders["int8"]).fingerprint == lm.fingerprint != plain.fingerprint

    batch = lm.batch([lm.tokens("Thomas is in the city of")])
    with lm.memory(1).capture() as seen, torch.no_grad():
        lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    assert seen.coefficients.shape[-1] == lm.memory(1).d_ffn

    edit = Grace(layer=1).edit(lm, [FACT])
    with edit.applied(lm):
        [rome] = lm.tokens("Rome")
        assert float(answer(lm).softmax(-1)[rome]) > 2 * float(before.softmax(-1)[rome])
    assert torch.equal(answer(lm), before)


@pytest.mark.parametrize("editor", [Rome(layer=1), Memit(layers=[1, 2])])
def test_weights_are_not_edited_and_nothing_is_computed_first(
    editor: Rome | Memit, folders: dict[str, Path], tmp_path: Path
) -> None:
    lm = load(folders["int8"])
    for call in (lambda: editor.prepare(lm), lambda: editor.edit(lm, [FACT])):
        with pytest.raises(UnsupportedModelError, match=r"quantised \(Linear8bitLt, int8\).*beside the weights"):
            call()
    assert not (tmp_path / "cache").exists()
