"""The proof of an edit on a tiny model: what it says is what the model says, and it goes on where it was killed."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import tiny
import torch

from corrigenda import Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.runs.folder import RunFolder
from eval import EvalSettings
from eval.proof import proving
from eval.proof.proving import prove

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
SETTINGS = EvalSettings(max_new_tokens=3, preservation_tokens=3, perplexity_windows=3, perplexity_window=8)


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return tiny.build("llama")


def an_edit(lm: LanguageModel, size: float) -> LowRankEdit:
    draw = torch.Generator().manual_seed(0)
    factors = torch.randn(48, 2, generator=draw), size * torch.randn(2, 32, generator=draw)
    return LowRankEdit.of(lm, Origin(lm.name, lm.fingerprint, "random"), {1: factors})


def test_what_is_said_is_what_the_model_says(lm: LanguageModel, tmp_path: Path) -> None:
    edit = an_edit(lm, 3.0)
    proven = prove(lm, edit, FACTS, SETTINGS, RunFolder(tmp_path))
    assert [one.case.fact for one in proven] == FACTS
    assert not lm.edits
    before = {fact.id: lm.generate(fact.statement, 3, stop_at_newline=True) for fact in FACTS}
    with edit.applied(lm):
        after = {fact.id: lm.generate(fact.statement, 3, stop_at_newline=True) for fact in FACTS}
    for one in proven:
        assert one.case.before is not None
        assert one.case.before.scored("prompt")[0].answer == before[one.case.fact.id]
        assert one.case.after.scored("prompt")[0].answer == after[one.case.fact.id]
        assert one.holds == after[one.case.fact.id].startswith("Rome")
        gone = {record.prompt for record in one.case.after.elsewhere() if record.preserved is False}
        assert {changed.prompt for changed in one.changed} == gone
        assert all(changed.before != changed.now for changed in one.changed)
    assert any(one.changed for one in proven)
    assert "perplexity_drift" in proven[0].case.after.values


def test_an_edit_of_nothing_changes_nothing(lm: LanguageModel, tmp_path: Path) -> None:
    proven = prove(lm, an_edit(lm, 0.0), FACTS, SETTINGS, RunFolder(tmp_path))
    assert not any(one.changed for one in proven)
    assert {one.case.after.values["preservation"] for one in proven} == {1.0}


def test_a_killed_proof_goes_on(lm: LanguageModel, tmp_path: Path) -> None:
    edit = an_edit(lm, 3.0)
    whole = prove(lm, edit, FACTS, SETTINGS, RunFolder(tmp_path / "whole"))
    real, calls = proving.measure, []

    def killed(*arguments: object, **others: object) -> object:
        calls.append(arguments[1])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **others)  # type: ignore[arg-type]

    folder = RunFolder(tmp_path / "killed")
    with mock.patch.object(proving, "PART", 1):
        with mock.patch.object(proving, "measure", killed), pytest.raises(KeyboardInterrupt):
            prove(lm, edit, FACTS, SETTINGS, folder)
        assert not lm.edits
        with (folder.path / "cases.jsonl").open("a") as file:
            file.write('{"id": "half a li')
        with mock.patch.object(proving, "measure", wraps=real) as measured:
            again = prove(lm, edit, FACTS, SETTINGS, folder)
    assert measured.call_count == 4  # two facts, before and after
    assert [one.to_dict()["changed"] for one in again] == [one.to_dict()["changed"] for one in whole]
    answers = [[one.case.after.scored("prompt")[0].answer for one in found] for found in (whole, again)]
    assert answers[0] == answers[1]
