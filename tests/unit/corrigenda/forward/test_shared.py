from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import ContextEdit, LanguageModel, Origin, SideMemoryEdit
from corrigenda.forward import shared as shared_start
from corrigenda.forward.generation import decode
from corrigenda.forward.shared import LEAST, SharedStart
from eval.scoring.probabilities import continues_as, score

CONTEXT = "Danielle speaks red green blue and the river is in Rome . " * 4
PROMPTS = ["Ben", "the tower is in", "Thomas speaks", "red green blue one two three four"]
QUERIES = [(prompt, [" Rome", " Paris one"]) for prompt in PROMPTS]


@contextmanager
def counted(lm: LanguageModel) -> Iterator[list[int]]:
    """How many tokens each forward inside the block runs, padding included."""
    found: list[int] = []

    def note(_module: object, _args: object, kwargs: dict[str, Tensor]) -> None:
        found.append(kwargs["input_ids"].numel())

    handle = lm.model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


def answers(lm: LanguageModel) -> tuple[Tensor, list[list[int]], list[bool]]:
    """All that is asked of a model with prompts: log-probabilities, free answers, and whether some answers hold."""
    found = score(lm, QUERIES, keep_distributions=True)
    logs = [value for prompt in found for target in prompt.targets for value in target.log_probs]
    tokens = [lm.tokens(prompt) for prompt in PROMPTS]
    added = decode(lm, tokens, 6)
    held = continues_as(lm, list(zip(tokens, added, strict=True)))
    wrong = continues_as(lm, [(prompt, [5, 5]) for prompt in tokens])
    rows = [prompt.next_token for prompt in found if prompt.next_token is not None]
    return torch.cat([torch.tensor(logs), *rows]), added, held + wrong


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", tiny.DECODERS)
def test_everything_comes_out_as_without(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build(family)
    with ContextEdit(Origin(lm.name, lm.fingerprint, "test"), CONTEXT).applied(lm):
        assert SharedStart(lm, [lm.tokens(prompt) for prompt in PROMPTS]).length >= LEAST
        logs, added, held = answers(lm)
        monkeypatch.setattr(shared_start, "LEAST", 10**9)
        plain_logs, plain_added, plain_held = answers(lm)
    assert float((logs - plain_logs).abs().max()) < 1e-4
    assert added == plain_added
    assert held == plain_held
    assert held[:4] == [True] * 4


def test_the_start_is_run_once(lm: LanguageModel) -> None:
    with ContextEdit(Origin(lm.name, lm.fingerprint, "test"), CONTEXT).applied(lm):
        tokens = [lm.tokens(prompt) for prompt in PROMPTS]
        start = SharedStart(lm, tokens)
        own = max(map(len, tokens)) - start.length
        with counted(lm) as seen:
            decode(lm, tokens, 3)
            assert seen[:2] == [start.length, 4 * own]
            seen.clear()
            score(lm, QUERIES)
            assert seen[:2] == [start.length, 4 * own]
            assert sum(seen) < sum(map(len, tokens))
        assert start.weight(start.length + 10) == 10 + start.length // 8


def test_what_some_prompts_begin_with_is_run_once(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    stated = [
        "Danielle speaks red green blue and the river is in Rome . ",
        "Thomas is in the tower and one two three . ",
    ]
    queries = [(text + prompt, targets) for text in ("", *stated) for prompt, targets in QUERIES]
    n_tokens = sum(len(lm.tokens(prompt)) for prompt, _ in queries)
    with counted(lm) as seen:
        found = score(lm, queries)
    assert len(seen) == 3  # what is shared, the rest, and the targets
    assert seen[0] < 2 * len(lm.tokens(stated[0])) + 2
    monkeypatch.setattr(shared_start, "LEAST", n_tokens)
    with counted(lm) as plainly:
        plain = score(lm, queries)
    assert len(plainly) == 2
    for one, other in zip(found, plain, strict=True):
        for mine, theirs in zip(one.targets, other.targets, strict=True):
            assert mine.log_probs == pytest.approx(theirs.log_probs, abs=1e-5)


def test_where_there_is_nothing_to_share(lm: LanguageModel) -> None:
    alike = [[*range(5, 5 + LEAST), end] for end in (7, 8)]
    assert SharedStart(lm, alike).length == LEAST
    assert SharedStart(lm, alike[:1]).length == 0  # nothing is gained
    assert SharedStart(lm, []).length == 0
    assert SharedStart(lm, [row[1:] for row in alike]).length == 0  # too little
    assert SharedStart(lm, [alike[0], alike[0][:LEAST]]).length == 0  # the last token of each is its own
    assert SharedStart(tiny.build("bert"), alike).length == 0


def test_routed_edits_decide_on_whole_prompts(lm: LanguageModel) -> None:
    alike = [[*range(5, 5 + LEAST), end] for end in (7, 8)]
    memory = lm.memory(1)
    edit = SideMemoryEdit.of(
        memory, Origin(lm.name, lm.fingerprint, "test"), torch.zeros(1, *memory.values.shape), torch.ones(1)
    )
    with edit.applied(lm):
        assert SharedStart(lm, alike).length == 0
    assert SharedStart(lm, alike).length == LEAST


@pytest.mark.parametrize("n_more", [24, 40])  # the start is cut shorter for the short prompt, or is not used
def test_a_prompt_that_is_much_shorter_than_others(n_more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build("llama")
    lm.model.config.max_position_embeddings = 128  # the longest prompt has 72 tokens
    head = [5 + number % 20 for number in range(LEAST)]
    prompts = [[*head, 7], [*head, *[9, 8] * (n_more // 2)]]
    found = decode(lm, prompts, 4)
    assert SharedStart(lm, prompts).length == LEAST
    monkeypatch.setattr(shared_start, "LEAST", 10**9)
    assert found == decode(lm, prompts, 4)
