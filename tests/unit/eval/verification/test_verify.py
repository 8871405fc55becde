from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import tiny
from edits_parts import random_update

from corrigenda import Fact, LanguageModel
from corrigenda.runs.folder import RunFolder
from eval import EvalSettings
from eval.verification import unedited
from eval.verification import verify as verifying
from eval.verification.unedited import Unedited
from eval.verification.verify import verify


@contextmanager
def measuring(instead: Callable[..., object]) -> Iterator[None]:
    """Has something else measure, both the edited and the unedited model."""
    with mock.patch.object(verifying, "measure", instead), mock.patch.object(unedited, "measure", instead):
        yield


FACTS = [
    Fact.from_dict(
        {
            "id": f"fact-{number}",
            "subject": f"the {subject}",
            "prompt": "{} is in the city of",
            "target_new": "Rome",
            "neighbourhood": ["the north is in the city of"],
            "locality": [{"prompt": "the capital of France is", "answer": "Paris"}],
        }
    )
    for number, subject in enumerate(["tower", "river", "piano"])
]
SETTINGS = EvalSettings(max_new_tokens=4, preservation_tokens=3, perplexity_windows=3, perplexity_window=8)


lm = pytest.fixture(tiny.llama, scope="module")


def test_what_is_said_is_what_the_model_says(lm: LanguageModel, tmp_path: Path) -> None:
    edit = random_update(lm, 30.0)
    verified = verify(lm, edit, FACTS, SETTINGS, RunFolder(tmp_path))
    assert [one.case.fact for one in verified] == FACTS
    assert not lm.edits
    before = {fact.id: lm.generate(fact.statement, 4, stop_at_newline=True) for fact in FACTS}
    with edit.applied(lm):
        after = {fact.id: lm.generate(fact.statement, 4, stop_at_newline=True) for fact in FACTS}
    for one in verified:
        assert one.case.before is not None
        assert one.case.before.scored("prompt")[0].answer == before[one.case.fact.id]
        assert one.case.after.scored("prompt")[0].answer == after[one.case.fact.id]
        assert one.holds == after[one.case.fact.id].startswith("Rome")
        gone = {record.prompt for record in one.case.after.elsewhere() if record.preserved is False}
        assert {changed.prompt for changed in one.changed} == gone
        assert all(changed.before != changed.now for changed in one.changed)
    assert any(one.changed for one in verified)
    assert "perplexity_drift" in verified[0].case.after.values


def test_a_second_proof_asks_the_unedited_model_nothing(lm: LanguageModel, tmp_path: Path) -> None:
    kept = tmp_path / "unedited"
    verify(lm, random_update(lm, 10.0), FACTS, SETTINGS, RunFolder(tmp_path / "first"), Unedited(lm, SETTINGS, kept))
    edit, fewer = random_update(lm, 30.0), FACTS[1:]
    anew = verify(lm, edit, fewer, SETTINGS, RunFolder(tmp_path / "anew"))
    asked = AssertionError("the unedited model was asked")
    with (
        mock.patch.object(unedited, "measure", side_effect=asked),
        mock.patch.object(unedited, "read_held_out", side_effect=asked),
    ):
        second = verify(lm, edit, fewer, SETTINGS, RunFolder(tmp_path / "second"), Unedited(lm, SETTINGS, kept))
        for changed in (replace(SETTINGS, max_new_tokens=5), replace(SETTINGS, seed=1)):
            with pytest.raises(AssertionError, match="was asked"):
                Unedited(lm, changed, kept).of(fewer)
        with pytest.raises(AssertionError, match="was asked"):
            Unedited(lm, SETTINGS, kept).of([replace(fewer[0], neighbourhood=("the south is in the city of",))])
        with pytest.raises(AssertionError, match="was asked"):
            Unedited(tiny.build("llama", seed=1), SETTINGS, kept).held_out()
    for one, other in zip(second, anew, strict=True):
        assert one.changed == other.changed
        assert one.case.before is not None
        assert other.case.before is not None
        assert one.case.before.held_out == other.case.before.held_out
        # To the rounding of float32 forwards of other batches, over a few tokens.
        for mine, others in ((one.case.before, other.case.before), (one.case.after, other.case.after)):
            assert mine.values.keys() == others.values.keys()
            assert mine.values == pytest.approx(others.values, rel=1e-4, abs=1e-5)


def test_what_is_damaged_or_of_other_facts_goes(lm: LanguageModel, tmp_path: Path) -> None:
    known = Unedited(lm, SETTINGS, tmp_path)
    [first, *_] = known.of(FACTS)
    files = sorted(tmp_path.iterdir())
    assert len(files) == len(FACTS) + 1
    Unedited(lm, SETTINGS, tmp_path).forget_others(FACTS[:1])
    left = sorted(tmp_path.iterdir())
    assert len(left) == 2
    for path in left:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with mock.patch.object(unedited, "measure", wraps=unedited.measure) as measured:
            [again] = Unedited(lm, SETTINGS, tmp_path).of(FACTS[:1])
            assert Unedited(lm, SETTINGS, tmp_path).held_out() == first.held_out
        assert measured.called == (b"records" in whole)
        assert again.values == pytest.approx(first.values, rel=1e-4)
        assert path.read_bytes() != whole[: len(whole) // 2]


def test_a_killed_proof_goes_on(lm: LanguageModel, tmp_path: Path) -> None:
    edit = random_update(lm, 30.0)
    whole = verify(lm, edit, FACTS, SETTINGS, RunFolder(tmp_path / "whole"))
    real, calls = verifying.measure, []

    def killed(*arguments: object, **others: object) -> object:
        calls.append(arguments[1])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments, **others)  # type: ignore[arg-type]

    folder = RunFolder(tmp_path / "killed")
    with mock.patch.object(verifying, "PART", 1):
        with measuring(killed), pytest.raises(KeyboardInterrupt):
            verify(lm, edit, FACTS, SETTINGS, folder)
        assert not lm.edits
        with (folder.path / "cases.jsonl").open("a") as file:
            file.write('{"id": "half a li')
        calls.clear()
        with measuring(lambda *arguments, **others: calls.append(arguments[1]) or real(*arguments, **others)):
            again = verify(lm, edit, FACTS, SETTINGS, folder)
    # The second was measured before the edit; the third before and after it.
    assert [len(facts) for facts in calls] == [1, 1, 1]
    assert [facts[0].id for facts in calls] == ["fact-1", "fact-2", "fact-2"]
    assert [one.changed for one in again] == [one.changed for one in whole]
    answers = [[one.case.after.scored("prompt")[0].answer for one in found] for found in (whole, again)]
    assert answers[0] == answers[1]
