from collections.abc import Sequence

import pytest
import torch

from corrigenda import LanguageModel
from corrigenda.data.embedded import embedded_facts

FACTS = (*embedded_facts()[:10], *embedded_facts()[10::4])
"""Those of the demonstration, and a quarter of the rest."""


@pytest.mark.slow
def test_the_default_model_knows_most_of_the_facts(smollm2: LanguageModel) -> None:
    queries = [(fact.statement, str(target)) for fact in FACTS for target in (fact.target_true, fact.target_new)]
    scores = mean_log_probabilities(smollm2, queries)
    preferred = {fact.id for fact, true, new in zip(FACTS, scores[::2], scores[1::2], strict=True) if true > new}
    assert len(preferred) / len(FACTS) >= 250 / 300
    assert preferred >= {fact.id for fact in FACTS[:10]}, "the first ten facts are the demonstration"


@torch.inference_mode()
def mean_log_probabilities(lm: LanguageModel, queries: Sequence[tuple[str, str]], batch_size: int = 64) -> list[float]:
    """The mean over the target's tokens of log P(token | prompt and the tokens before it), in plain full forwards."""
    encode = lm.tokenizer
    tokens = [
        (encode(prompt).input_ids, encode(" " + target, add_special_tokens=False).input_ids)
        for prompt, target in queries
    ]
    scores = [0.0] * len(queries)
    by_length = sorted(range(len(queries)), key=lambda i: sum(map(len, tokens[i])))
    for start in range(0, len(queries), batch_size):
        chosen = by_length[start : start + batch_size]
        # Padding stands on the right, where no real position can see it.
        rows = [torch.tensor([*tokens[i][0], *tokens[i][1]]) for i in chosen]
        batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        hidden = lm.model.get_decoder()(input_ids=batch.to(lm.model.device)).last_hidden_state
        for row, i in enumerate(chosen):
            prompt, target = tokens[i]
            at = slice(len(prompt) - 1, len(prompt) + len(target) - 1)
            log_probabilities = lm.model.get_output_embeddings()(hidden[row, at]).log_softmax(-1)
            scores[i] = log_probabilities[range(len(target)), target].mean().item()
    return scores
