import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from made_entries import LAYERS, MadeUp, a_fact, do, folding_of, verbs
from torch import Tensor

from corrigenda import Fact, KnowledgeBase, LanguageModel, LowRankEdit, ValueEdit, WrongModelError
from corrigenda.knowledge.folding import Folding, Sums

FEW = [a_fact(number) for number in range(5)]
MANY = [a_fact(number) for number in range(40)]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return tiny.build("llama")


@pytest.fixture(scope="module")
def folding(lm: LanguageModel) -> Folding:
    return folding_of(lm, 1.5)


def compiled(path: Path, lm: LanguageModel, how: Folding, facts: list[Fact]) -> dict[int, Tensor]:
    """What a new base of these facts compiles to."""
    with KnowledgeBase.open(path) as kb:
        kb.insert(facts, lm, MadeUp())
        return deltas(kb.compile(lm, how))


def deltas(edit: object) -> dict[int, Tensor]:
    assert isinstance(edit, (LowRankEdit, ValueEdit))
    return {layer: edit.delta(layer) for layer in edit.changed}


def equal(found: dict[int, Tensor], expected: dict[int, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[n], expected[n]) for n in found)


@pytest.mark.parametrize(("facts", "kind"), [(FEW, LowRankEdit), (MANY, ValueEdit)])
def test_values_solve_the_least_squares_problem(
    facts: list[Fact], kind: type, lm: LanguageModel, folding: Folding, tmp_path: Path
) -> None:
    """V = A^-1 B with numpy, entry by entry in float64."""
    with KnowledgeBase.open(tmp_path / "kb") as kb:
        kb.insert(facts, lm, MadeUp())
        edit = kb.compile(lm, folding)
    assert isinstance(edit, kind)
    assert edit.origin.facts == tuple(sorted(facts, key=lambda fact: fact.id))
    assert edit.origin.settings == {"weight": 1.5, "solver": {"steps": 20}}
    found = deltas(edit)
    assert list(found) == list(LAYERS)
    for layer in LAYERS:
        V0 = lm.memory(layer).values.double().numpy()
        C = 1.5 * folding.moments[layer].numpy()
        A, B = C.copy(), C @ V0
        for entry in MadeUp((layer,))(lm, facts):
            k, v = entry.key.double().numpy(), entry.value.double().numpy()
            A, B = A + np.outer(k, k), B + np.outer(k, v)
        expected = np.linalg.solve(A, B) - V0
        assert np.abs(found[layer].double().numpy() - expected).max() < 1e-6 * np.abs(expected).max()


def test_sums_are_the_same_however_they_are_taken(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = MadeUp((1,))(lm, MANY)
    keys, values = [entry.key for entry in entries], [entry.value for entry in entries]
    whole = Sums.of(keys, values, lm.memory(1).values)
    monkeypatch.setattr("corrigenda.knowledge.folding.ROWS", 7)
    parts = Sums.of(keys, values, lm.memory(1).values)
    torch.testing.assert_close(parts.gram, whole.gram)
    torch.testing.assert_close(parts.cross, whole.cross)


def test_a_small_weight_makes_the_keys_answer(lm: LanguageModel, folding: Folding, tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path / "kb") as kb:
        kb.insert(FEW, lm, MadeUp())
        with kb.compile(lm, Folding(folding.moments, 1e-9)).applied(lm):
            for entry in MadeUp()(lm, FEW):
                torch.testing.assert_close(entry.key @ lm.memory(entry.layer).values, entry.value, rtol=0, atol=1e-4)


def test_no_entries_change_nothing(lm: LanguageModel, folding: Folding, tmp_path: Path) -> None:
    before = lm.memory(1).values.clone()
    with KnowledgeBase.open(tmp_path / "kb") as kb, kb.compile(lm, folding).applied(lm):
        assert torch.equal(lm.memory(1).values, before)


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
        with pytest.raises(ValueError, match="entries are at layer 2, and second moments are given of layers: 1"):
            kb.compile(lm, Folding({1: folding.moments[1]}, 1.0))
        with pytest.raises(ValueError, match=r"layer 1 has the shape \(3, 3\), its keys need \(48, 48\)"):
            kb.compile(lm, Folding({1: torch.eye(3)}, 1.0))
        with pytest.raises(ValueError, match=r"layer 1 is not positive definite"):
            kb.compile(lm, Folding({layer: torch.zeros(48, 48) for layer in LAYERS}, 1.0))
        with pytest.raises(ValueError, match="weight=0"):
            Folding(folding.moments, 0.0)
        kb.insert([a_fact(7)], lm, MadeUp(steps=9))
        with pytest.raises(ValueError, match=r"'fact-4' and 'fact-7' were solved with different settings .*anew=True"):
            kb.compile(lm, folding)
        kb.solve(lm, MadeUp(steps=9), anew=True)
        kb.compile(lm, folding)
