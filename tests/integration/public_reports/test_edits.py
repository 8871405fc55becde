from pathlib import Path

import pytest
import tiny
import torch
from public_reports import DANIELLE, EIFFEL, logits, low_rank, model, rome

from corrigenda import LanguageModel, load
from corrigenda.moments.second_moment import second_moment
from editing import Memit, Rome, ValueSettings


@pytest.fixture
def lm() -> LanguageModel:
    return LanguageModel(model(), tiny.tokenizer(), "tiny")


@pytest.mark.parametrize("editor", [rome(), Memit(layers=(1, 2), prefixes=("",), value=ValueSettings(steps=4))])
@pytest.mark.filterwarnings("ignore:memit. the second moment")
def test_neurons_that_are_never_active(editor: Rome | Memit) -> None:
    """kmeng01/memit#12: the covariance is singular, and solving with it fails or gives NaN."""
    made = model()
    for block in made.model.layers:
        block.mlp.up_proj.weight.data[:5] = 0
    edit = editor.edit(LanguageModel(made, tiny.tokenizer(), "tiny"), [EIFFEL, DANIELLE])
    assert all(bool(tensor.isfinite().all()) for tensor in edit._tensors().values())
    with pytest.raises(ValueError, match=r"singular with the ridge 0: take a ridge above 0, or more text"):
        rome(ridge=0.0).edit(LanguageModel(made, tiny.tokenizer(), "tiny"), [EIFFEL])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision(dtype: torch.dtype) -> None:
    """zjunlp/EasyEdit#409, #296, #112: the update failed for its precision, or was another one than in float32."""
    half = LanguageModel(model().to(dtype), tiny.tokenizer(), "tiny")
    whole = LanguageModel(model().to(dtype).float(), tiny.tokenizer(), "tiny")
    updates = [rome().edit(some, [EIFFEL]).delta(1).flatten() for some in (half, whole)]
    assert float(torch.nn.functional.cosine_similarity(*updates, dim=0)) > 0.95
    assert float(updates[0].norm() / updates[1].norm()) == pytest.approx(1, abs=0.1)
    moment = second_moment(half, 1, rome().text)
    assert moment.matrix.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.filterwarnings("ignore:the values of layer")
def test_another_precision_while_an_edit_is_applied(lm: LanguageModel, dtype: torch.dtype) -> None:
    """zjunlp/EasyEdit#436: the model's precision is changed while it is edited. The clean weights come back in it."""
    clean = lm.memory(1).values.clone()
    edit = low_rank(lm, {1: 2})
    edit.apply(lm)
    lm.model.to(dtype)
    edited = lm.memory(1).values.clone()
    assert not torch.equal(edited, clean.to(dtype))
    edit.revert(lm)
    assert torch.equal(lm.memory(1).values, clean.to(dtype))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "opt"])
def test_tied_embeddings_saved_and_loaded(family: str, tied: bool, tmp_path: Path) -> None:
    """huggingface/transformers#30202, #33688, #41038: of a model that shares its embeddings with its head a part was
    not written, or overwritten when it was read."""
    lm = LanguageModel(model(family, tie_word_embeddings=tied), tiny.tokenizer(), "tiny")
    with low_rank(lm, {1: 2, 3: 1}).applied(lm):
        edited = logits(lm.model)
        lm.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path).model), edited)
    assert not torch.equal(logits(lm.model), edited)
