import warnings
from collections.abc import Callable

import pytest
import tiny
import torch
from by_hooks import entering, leaving, logits
from torch import Tensor

from corrigenda import Fact, LanguageModel
from editing.locate_then_edit.keys import bare_keys, group_weights, mean_keys
from editing.locate_then_edit.prompt_run import PromptRun, run_prompts
from editing.locate_then_edit.prompts import build_prompts

PREFIXES = ("", "red green . ", "the river is in the north . ")
FACTS = [
    Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris"),
    Fact("Rome", "{} is the capital of the country", "England", "Italy"),  # ends at the very first token
]


def run(lm: LanguageModel, layers: list[int]) -> PromptRun:
    return run_prompts(lm, build_prompts(lm, FACTS, PREFIXES, "{} is a", "subject"), layers)


def by_hand(lm: LanguageModel, layer: int, text: str, subject: str) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients, FFN output and block output at the subject's last token, by hooks on the whole model."""
    end = len(lm.tokenizer(text[: text.rindex(subject) + len(subject)])["input_ids"]) - 1
    values, block = lm.architecture.values(layer), lm.architecture.block(layer)
    with entering(values) as entered, leaving(values) as left, leaving(block) as above:
        logits(lm, lm.tokenizer(text)["input_ids"])
    coefficients, output, state = (part.reshape(-1, part.shape[-1])[end] for [part] in (entered, left, above))
    return coefficients, output, state


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gemma2", "gpt_neox", "olmo2"])
def test_every_layer_of_one_run(family: str) -> None:
    lm = tiny.build(family)
    found = run(lm, [0, 2])
    for layer in (0, 2):
        rows = [by_hand(lm, layer, prefix + FACTS[0].statement, FACTS[0].subject) for prefix in PREFIXES]
        keys = torch.stack([key for key, _, _ in rows])
        torch.testing.assert_close(bare_keys(found, layer)[0], keys[0], atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(mean_keys(found, layer)[0], keys.mean(0), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(found.ffn_outputs(layer)[0], rows[0][1], atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(found.block_outputs(layer)[1], rows[1][2], atol=1e-4, rtol=1e-3)
        alone = run(lm, [layer])
        assert torch.equal(mean_keys(found, layer), mean_keys(alone, layer))
        assert torch.equal(found.block_outputs(layer), alone.block_outputs(layer))


def test_groups_of_contexts_count_alike(lm: LanguageModel) -> None:
    weights = group_weights([1, 2])
    assert weights.tolist() == [0.5, 0.25, 0.25]
    found = run(lm, [1])
    keys = found.keys(1)
    assert found.prompts.fact.tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert found.prompts.prefix.tolist() == [0, 1, 2, 1, 2, -1, -1]
    weighted = mean_keys(found, 1, weights)
    torch.testing.assert_close(weighted[0], keys[0] / 2 + keys[1] / 4 + keys[2] / 4)
    torch.testing.assert_close(weighted[1], (keys[3] + keys[4]) / 2)
    torch.testing.assert_close(mean_keys(found, 1, torch.ones(3)), mean_keys(found, 1))


def test_what_was_not_run(lm: LanguageModel) -> None:
    found = run(lm, [1, 3])
    for asked in (mean_keys, bare_keys):
        with pytest.raises(ValueError, match="these layers: 1, 3; not for layer 2"):
            asked(found, 2)
    with pytest.raises(ValueError, match="layer 3 is the last"):
        found.block_outputs(3)
    for sizes in ([], [1, 0]):
        with pytest.raises(ValueError, match="at least one each"):
            group_weights(sizes)


def test_what_comes_after_the_subject_runs_no_further_than_is_wanted(lm: LanguageModel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # above all, nothing is said of a cache that is not whole
        calls = [calls_of(lm, layer, lambda: run(lm, [1])) for layer in range(tiny.DEPTH)]
    # The contexts, the rest before the subjects, and what comes after: this up to the layer after the wanted one.
    assert calls == [3, 3, 3, 2]


def calls_of(lm: LanguageModel, layer: int, call: Callable[[], object]) -> int:
    """How often a block runs."""
    block, seen = lm.architecture.block(layer), []
    plain = block.forward
    block.forward = lambda *args, **kwargs: (seen.append(1), plain(*args, **kwargs))[1]
    try:
        call()
    finally:
        del block.forward
    return len(seen)
