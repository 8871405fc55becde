import pytest
import tiny
from prompts_parts import SHARING, assert_equal_recordings, framed, pretend_slow

from corrigenda.forward.recording import record
from corrigenda.forward.shared import record_shared
from corrigenda.prompts import subject_span

SUBJECTS = [
    # prompt, subject, first token and the one after the last, in words
    ("Eiffel Tower is in Paris", "Eiffel Tower", 0, 2),
    ("the tower Big Ben is in London", "Big Ben", 2, 4),
    ("the capital of France", "France", 3, 4),
    ("Paris", "Paris", 0, 1),
    ("Paris is in France , and Paris is the capital", "Paris", 6, 7),  # the last of two
    ("Danielle Darrieux speaks", "Danielle Darrieux ", 0, 2),
]


@pytest.mark.parametrize(("prompt", "subject", "first", "end"), SUBJECTS)
@pytest.mark.parametrize("slow", [False, True])
def test_subject_span(
    prompt: str, subject: str, first: int, end: int, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, with_specials = tiny.tokenizer(), framed()
    if slow:
        pretend_slow(monkeypatch, plain)
    assert plain.is_fast != slow
    assert subject_span(plain, prompt, subject) == (first, end)
    assert subject_span(with_specials, prompt, subject) == (first + 1, end + 1)


@pytest.mark.parametrize("rows", SHARING)
@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_shared_recording_equals_the_plain_one(family: str, rows: str) -> None:
    lm = tiny.build(family)
    batch = lm.batch(SHARING[rows])
    last = batch.lengths - 1
    found = record_shared(lm, batch, layers=[0, 2]).record([0, 2], last)
    assert_equal_recordings(found, record(lm, batch, [0, 2], last))
