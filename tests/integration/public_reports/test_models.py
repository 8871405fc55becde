import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import tiny
import torch
from public_reports import EIFFEL, log_probs, low_rank, model, rome

from corrigenda import ContextLengthError, LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.moments.second_moment import second_moment
from corrigenda.moments.text import Text
from eval.scoring.probabilities import score

PROMPTS = ["the tower", "in the city of London the river is", "a", "the mother tongue of Danielle Darrieux is the"]


@pytest.mark.parametrize(
    ("family", "pad"),
    [*((family, "<pad>") for family in (*tiny.DECODER_KINDS, *tiny.MIXTURE_KINDS)), ("llama", "</s>"), ("llama", None)],
)
def test_several_prompts_at_once(family: str, pad: str | None) -> None:
    """TransformerLens#1005, huggingface/transformers#22707, #25790: a prompt is answered otherwise beside a longer one,
    and where the padding is the end token, or there is none."""
    lm = tiny.build(family)
    lm.tokenizer.pad_token = pad
    assert lm.generate(PROMPTS, 6) == [lm.generate(prompt, 6) for prompt in PROMPTS]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_kind_of_attention(attention: str) -> None:
    """pytorch/pytorch#103749, huggingface/transformers#30652: a padded row gives NaN in one kind of attention, and a
    row is not masked at all in another."""
    made = model()
    made.set_attn_implementation(attention)
    lm = LanguageModel(made, tiny.tokenizer(), "tiny")
    targets = ["Rome and Paris", "Big Ben"]
    for prompt, found in zip(PROMPTS, score(lm, [(prompt, targets) for prompt in PROMPTS]), strict=True):
        ids = lm.tokens(prompt)
        for target, scored in zip(targets, found.targets, strict=True):
            whole = lm.tokens(f"{prompt} {target}")
            assert scored.log_probs == pytest.approx(log_probs(lm, whole, len(ids)), abs=1e-5)


def test_scores_in_half_precision() -> None:
    """genlm/genlm-backend#66, Modalities/modalities#464: the softmax was taken in bfloat16, which loses the tail."""
    lm = LanguageModel(model().bfloat16(), tiny.tokenizer(), "tiny")
    [found] = score(lm, [("the tower is", ["Rome"])], keep_distributions=True)
    plain = lm.model(input_ids=torch.tensor([lm.tokens("the tower is")])).logits[0, -1].float().log_softmax(-1)
    assert found.next_token is not None
    assert torch.equal(found.next_token, plain)
    assert float(found.next_token.exp().sum()) == pytest.approx(1, abs=1e-6)


LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


def long_rope() -> LanguageModel:
    rope = LONG | {"original_max_position_embeddings": 10}
    return LanguageModel(
        model("phi3", rope_parameters=rope, original_max_position_embeddings=10), tiny.tokenizer(), "tiny"
    )


def test_a_longer_row_beside_one() -> None:
    """huggingface/transformers#33129, QwenLM/Qwen#401: the longest row of a batch chose the rotary frequencies of all,
    and what a cache held was of other frequencies than what followed."""
    lm = long_rope()
    assert lm.context_length == 10
    fits, long = (
        ("the tower is in", ["Rome and Paris", "Big Ben"]),
        ("in the city of London the river is the", ["Rome"]),
    )
    both = score(lm, [fits, long])
    for (prompt, targets), found in zip((fits, long), both, strict=True):
        for target, scored in zip(targets, found.targets, strict=True):
            whole = lm.tokens(f"{prompt} {target}")
            assert scored.log_probs == pytest.approx(log_probs(lm, whole, len(lm.tokens(prompt))), abs=1e-5)
    with pytest.raises(ContextLengthError, match="12 tokens, and tiny reads at most 10"):
        score(lm, [fits, (long[0], ["Rome and Paris of"])])
    with pytest.raises(ContextLengthError, match="reads at most 10"):
        lm.generate(fits[0], 12)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16), "torch.autocast is on"),
        (lambda: default_dtype(torch.bfloat16), "default dtype is torch.bfloat16"),
    ],
)
def test_a_precision_that_torch_is_set_to(setting: Callable[[], AbstractContextManager[Any]], said: str) -> None:
    """huggingface/peft#971, huggingface/transformers#28461: under autocast, or with a default dtype that a failed
    loading left behind, weights were written and moments kept in another precision than the model's."""
    lm = LanguageModel(model(), tiny.tokenizer(), "tiny")
    edit = low_rank(lm, {1: 2})
    clean = lm.memory(1).values.clone()
    with setting():
        for act in (
            lambda: edit.apply(lm),
            lambda: rome().edit(lm, [EIFFEL]),
            lambda: score(lm, [("the tower", ["Rome"])]),
            lambda: lm.generate("the tower", 2),
            lambda: second_moment(lm, 1, Text(tokens=64, length=16, seed=7)),
        ):
            with pytest.raises(RuntimeError, match=said):
                act()
    assert not len(lm.edits)
    assert torch.equal(lm.memory(1).values, clean)


def test_a_model_in_a_wrapper() -> None:
    """zjunlp/EasyEdit#394: in DistributedDataParallel the layers have other names, which were not found."""
    with pytest.raises(UnsupportedModelError, match=r"wrapped in DataParallel.*model\.module"):
        LanguageModel(torch.nn.DataParallel(model()), tiny.tokenizer(), "tiny")  # type: ignore[arg-type]


def test_a_model_without_a_head() -> None:
    """zjunlp/EasyEdit#288: AutoModel instead of AutoModelForCausalLM: there are no logits."""
    with pytest.raises(UnsupportedModelError, match="LlamaModel"):
        LanguageModel(model().model, tiny.tokenizer(), "tiny")


@pytest.mark.parametrize("shared", ["block", "matrix"])
def test_layers_that_share_their_weights(shared: str) -> None:
    """ggml-org/llama.cpp#4718, huggingface/peft#2018: of two places that hold one matrix both were changed; here taking
    the edits back left one of them in the weights."""
    made = model()
    layers: Sequence[torch.nn.Module] = made.model.layers
    if shared == "block":
        made.model.layers[2] = layers[1]
    else:
        layers[2].mlp.down_proj.weight = layers[1].mlp.down_proj.weight
    with pytest.raises(UnsupportedModelError, match="layers 1 and 2 share their weights"):
        LanguageModel(made, tiny.tokenizer(), "tiny")
    made.model.layers[2] = copy.deepcopy(layers[1])
    lm = LanguageModel(made, tiny.tokenizer(), "tiny")
    before = [lm.memory(layer).values.clone() for layer in (1, 2)]
    edit = low_rank(lm, {1: 1, 2: 1})
    edit.apply(lm)
    edit.revert(lm)
    assert all(torch.equal(lm.memory(layer).values, old) for layer, old in zip((1, 2), before, strict=True))
