import pytest
import tiny
import torch
from side_memory_parts import PROMPTS, greedy_by_hand, routed

from corrigenda.forward.generation import decode


@pytest.mark.parametrize("kind", ["side_memory", "codebook"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3_text", "opt", "bloom"])
def test_generation(family: str, kind: str) -> None:
    """With the cache and in a padded batch: what whole forwards without either give; by us and by transformers."""
    lm = tiny.build(family)
    lm.end_ids = frozenset()  # random models end at once, some of them
    edit, answers = routed(kind, lm)
    expected = [greedy_by_hand(lm, edit, p, a, 8) for p, a in zip(PROMPTS, answers, strict=True)]
    assert expected != [greedy_by_hand(lm, edit, p, False, 8) for p in PROMPTS]
    tokens = [lm.tokens(prompt) for prompt in PROMPTS]
    width = max(map(len, tokens))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in tokens])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in tokens])
    with edit.applied(lm):
        assert decode(lm, tokens, 8) == expected
        # Rows that end early are dropped from the cache; the others keep their routes.
        assert decode(lm, tokens, [1, 8, 2, 8]) == [row[:n] for row, n in zip(expected, [1, 8, 2, 8], strict=True)]
        settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        by_transformers = lm.model.generate(input_ids=ids, attention_mask=mask, **settings)
    assert by_transformers[:, width:].tolist() == expected
