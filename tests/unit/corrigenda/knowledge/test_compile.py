import itertools
import random
from pathlib import Path

import pytest
import tiny
import torch
from made_entries import Folding, MadeUp, a_fact, do, folding_of, verbs
from torch import Tensor

from corrigenda import Fact, KnowledgeBase, LanguageModel, ValueEdit, WrongModelError

FEW = [a_fact(number) for number in range(5)]


lm = pytest.fixture(tiny.llama, scope="module")


@pytest.fixture(scope="module")
def folding(lm: LanguageModel) -> Folding:
    return folding_of(lm, 1.5)


def compiled(path: Path, lm: LanguageModel, how: Folding, facts: list[Fact]) -> dict[int, Tensor]:
    """What a new base of these facts compiles to."""
    with KnowledgeBase.open(path) as kb:
        kb.insert(facts, lm, MadeUp())
        return deltas(kb.compile(lm, how))


def deltas(edit: ValueEdit) -> dict[int, Tensor]:
    return {layer: edit.delta(layer) for layer in edit.changed}


def equal(found: dict[int, Tensor], expected: dict[int, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[n], expected[n]) for n in found)


def test_a_random_sequence_of_verbs_leaves_no_trace(lm: LanguageModel, folding: Folding, tmp_path: Path) -> None:
    for seed in range(3):
        with KnowledgeBase.open(tmp_path / f"{seed}.kb") as kb:
            steps = list(itertools.islice(verbs(seed), 12))
            for verb, fact, _ in steps:
                do(kb, verb, fact, lm)
            found = deltas(kb.compile(lm, folding))
        left = random.Random(seed).sample([*steps[-1][2].values()], len(steps[-1][2]))
        assert equal(found, compiled(tmp_path / f"{seed}.new.kb", lm, folding, left))


def test_without_the_last_word_the_earlier_one_is_back(lm: LanguageModel, folding: Folding, tmp_path: Path) -> None:
    never = compiled(tmp_path / "never.kb", lm, folding, FEW)
    with KnowledgeBase.open(tmp_path / "kb") as kb:
        kb.insert(FEW, lm, MadeUp())
        kb.insert([a_fact(2, "Oslo", id="other")], lm, MadeUp())
        assert not equal(deltas(kb.compile(lm, folding)), never)
        kb.delete("other")
        assert equal(deltas(kb.compile(lm, folding)), never)


def test_edits_that_are_applied_do_not_matter(lm: LanguageModel, folding: Folding, tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path / "kb") as kb:
        kb.insert(FEW, lm, MadeUp())
        edit = kb.compile(lm, folding)
        with edit.applied(lm):
            assert equal(deltas(kb.compile(lm, folding)), deltas(edit))


def test_what_cannot_be_compiled_is_said(lm: LanguageModel, folding: Folding, tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path / "kb") as kb:
        kb.insert(FEW)
        with pytest.raises(ValueError, match=r"'fact-0' \('Tower 0 is in'\) is not solved yet: call solve\(\)"):
            kb.compile(lm, folding)
        kb.solve(lm, MadeUp())
        with pytest.raises(WrongModelError, match=r"fact 'fact-0' .* was solved on the weights"):
            kb.compile(tiny.build("llama", seed=1), folding)
        kb.insert([a_fact(7)], lm, MadeUp(steps=9))
        with pytest.raises(ValueError, match=r"'fact-4' and 'fact-7' were solved with different settings .*anew=True"):
            kb.compile(lm, folding)
        kb.solve(lm, MadeUp(steps=9), anew=True)
        kb.compile(lm, folding)
