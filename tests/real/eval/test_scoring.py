from collections.abc import Collection

from edits_parts import random_update
from scoring_parts import check, context_edit, plain

from corrigenda import LanguageModel
from eval.scoring.probabilities import continues_as, score

REAL_QUERIES = [
    ("The Eiffel Tower is located in the city of", ["Paris", "Saint Petersburg", "Kuala Lumpur", "Paris"]),
    ("Danielle Darrieux's mother tongue is", ["French", "Swahili or Zulu"]),
    ("Thomas", ["Edison", "Aquinas and his followers"]),
]


def test_log_probs_on_the_real_model(smollm2: LanguageModel) -> None:
    check(smollm2, REAL_QUERIES)
    assert any(len(target.log_probs) > 2 for found in score(smollm2, REAL_QUERIES) for target in found.targets)
    text = "The Eiffel Tower is located in the city of Kuala Lumpur. "
    with context_edit(smollm2, text).applied(smollm2):
        check(smollm2, REAL_QUERIES, text)


def test_continues_as_agrees_with_decoding(smollm2: LanguageModel) -> None:
    prompts = [
        "The Eiffel Tower is located in the city of",
        "Question: What is the capital of Japan?\nAnswer:",
        "Big Ben is located in the city of",
        "The mother tongue of Danielle Darrieux is",
        "1, 2, 3, 4,",
        "who wrote the book about the white whale",
    ]

    banned = smollm2.end_ids

    def answers(barred: Collection[int] = banned) -> list[list[int]]:
        found = []
        for prompt in prompts:  # one by one, token by token, with whole forwards
            ids = smollm2.tokens(prompt)
            added: list[int] = []
            for _ in range(4):
                best = plain(smollm2, ids + added)[-1].topk(len(barred) + 1).indices.tolist()
                added.append(next(token for token in best if token not in barred))
            found.append(added)
        return found

    old = answers()
    assert any(smollm2.ends_answer(token) for tokens in old for token in tokens)  # they go on after a line break
    items = list(zip(map(smollm2.tokens, prompts), old, strict=True))
    assert continues_as(smollm2, items, banned=banned) == [True] * len(prompts)
    wrong = [(prompt, [*tokens[:-1], tokens[-1] + 1]) for prompt, tokens in items]
    assert continues_as(smollm2, wrong, banned=banned) == [False] * len(wrong)
    free = [unbarred == tokens for unbarred, tokens in zip(answers(()), old, strict=True)]
    assert not all(free)  # some would have ended
    assert continues_as(smollm2, items) == free
    with random_update(smollm2, 1.0, 6).applied(smollm2):
        kept = [new == before for new, before in zip(answers(), old, strict=True)]
        assert any(kept)
        assert not all(kept)
        assert continues_as(smollm2, items, banned=banned) == kept
        assert continues_as(smollm2, items, max_tokens=20, banned=banned) == kept
