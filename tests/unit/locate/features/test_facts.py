import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from corrigenda import CoefficientEdit, ContextEdit, Fact, LanguageModel, Origin, ValueEdit
from corrigenda.dictionaries.dictionary import FeatureDictionary
from corrigenda.dictionaries.layouts import write_dictionary
from corrigenda.errors import SettingsError, WrongModelError
from corrigenda.moments.text import Text
from locate.features.facts import Features, fact_features
from locate.features.over_facts import FeatureSurvey
from locate.features.states import ffn_states
from locate.lens.words import read_static

FACT = Fact("Big Ben", "the tower {} is in the city of", "Rome", None)
EYE, NONE = torch.eye(tiny.WIDTH), torch.zeros(tiny.WIDTH)
WHOLE = torch.cat([EYE, -EYE])
ONE = FeatureDictionary(1, WHOLE, torch.zeros(2 * tiny.WIDTH), WHOLE, NONE, k=6)
SMALL: dict[str, Any] = {"contexts": 2, "tokens": 640, "words": 3, "top": 4}


lm = pytest.fixture(tiny.llama, scope="module")


def test_what_fires_at_the_subject_and_at_the_end(lm: LanguageModel) -> None:
    found = fact_features(lm, ONE, FACT, **SMALL)
    ids = lm.tokens(FACT.statement)
    _, output = ffn_states(lm, 1, lm.batch([ids]))
    subject = len(lm.tokens("the tower Big Ben")) - 1
    for row, position in enumerate((subject, len(ids) - 1)):
        y = torch.cat([output[0, position], -output[0, position]])
        numbers = y.topk(6).indices.tolist()
        place = ("subject", "end")[row]
        assert [number for number, _ in found.fires(place)] == numbers
        assert dict(found.fires(place, 1)) == {numbers[0]: pytest.approx(float(y.max()))}
        left = y[: tiny.WIDTH].abs().sort().values[:-6].norm() / output[0, position].norm()
        assert float(found.error[row]) == pytest.approx(float(left), abs=1e-5)
    assert found.added("end") == found.removed("end") == []


def test_features_in_words_and_contexts(lm: LanguageModel) -> None:
    found = fact_features(lm, ONE, FACT, **SMALL)
    again = fact_features(lm, ONE, FACT, **SMALL)  # from the kept contexts
    assert found.described == again.described
    feature = found.described[0]
    best = read_static(lm, WHOLE[feature.number]).topk(3).indices.tolist()
    assert feature.words == tuple(lm.tokenizer.decode([token]) for token in best)
    texts = torch.tensor(Text("shipped", 640).sequences(lm))
    _, output = ffn_states(lm, 1, lm.batch(texts.tolist()))
    activations = ONE.encode(output[:, 1:])[..., feature.number]
    text, position = divmod(int(activations.flatten().argmax()), activations.shape[1])
    ending = texts[text, max(0, position + 2 - 12) : position + 2].tolist()
    assert feature.contexts[0] == lm.tokenizer.decode(ending)
    assert fact_features(lm, ONE, FACT, **SMALL | {"contexts": 0}).described[0].contexts == ()


def test_an_edit_adds_and_removes_features(lm: LanguageModel) -> None:
    memory = lm.memory(1)
    with memory.capture() as seen:
        ffn_states(lm, 1, lm.batch([lm.tokens(FACT.statement)]))
    key, before = seen.coefficients[0, -1], seen.output[0, -1]
    wanted = torch.zeros(tiny.WIDTH)
    wanted[3] = 50.0
    edit, halfway = (
        ValueEdit.of(
            lm, Origin(lm.name, lm.fingerprint, "test", {}), {1: torch.outer(key, change) / key.square().sum()}
        )
        for change in (wanted - before, wanted)
    )
    found = fact_features(lm, dataclasses.replace(ONE, k=1), FACT, edit=edit, **SMALL)
    [(added, activation)] = found.added("end")
    assert (added, activation) == (3, pytest.approx(50.0, abs=1e-3))
    assert found.removed("end") == found.fires("end")
    assert 3 in {feature.number for feature in found.described}
    found = fact_features(lm, ONE, FACT, edit=halfway, **SMALL)
    now, was = ({*each[1].nonzero()[:, 0].tolist()} for each in (found.after, found.before))
    assert len(now & was) > 1  # what fires both times is neither
    assert {number for number, _ in found.added("end")} == now - was
    assert {number for number, _ in found.removed("end")} == was - now
    assert not lm.edits


def test_an_edit_that_puts_text_before_the_prompt_is_read_with_it(lm: LanguageModel) -> None:
    edit = ContextEdit(Origin(lm.name, lm.fingerprint, "test"), "the tower Big Ben is in Rome . ")
    found = fact_features(lm, ONE, FACT, edit=edit, **SMALL)
    with edit.applied(lm):
        edited = fact_features(lm, ONE, FACT, **SMALL)
    assert torch.equal(found.after, edited.before)
    assert not torch.equal(found.after, found.before)


def test_an_edit_that_looks_for_the_prompts_end_finds_it_before_an_answer_of_several_tokens(lm: LanguageModel) -> None:
    edit = CoefficientEdit.of(lm, Origin(lm.name, lm.fingerprint, "test"), {(1, 3): 50.0}, "predicting", "add")
    one, several = (fact_features(lm, ONE, FACT, said, edit, **SMALL) for said in ("Rome", "Rome and London"))
    assert not torch.equal(one.after[1], one.before[1])
    assert torch.equal(several.after, one.after)
    assert torch.equal(several.before, one.before)


def test_the_locator_reads_its_dictionary(lm: LanguageModel, tmp_path: Path) -> None:
    write_dictionary(ONE, tmp_path)
    locator = Features(str(tmp_path), layer=1, **SMALL)
    locator.check(lm)
    assert locator.find(lm, FACT).fires("end") == fact_features(lm, ONE, FACT, **SMALL).fires("end")
    with pytest.raises(SettingsError, match="dictionary=None names no dictionary; give the folder"):
        Features().check(lm)
    with pytest.raises(WrongModelError, match="has layers 0 to 3"):
        fact_features(lm, dataclasses.replace(ONE, layer=4), FACT)


def test_facts_together_by_hand(lm: LanguageModel) -> None:
    one = fact_features(lm, ONE, FACT, **SMALL)
    rows = torch.zeros(4, 2, 6)
    for fact, place, numbers in (
        (0, 0, (1,)),
        (0, 1, (1, 2)),
        (1, 1, (2, 3)),
        (2, 1, (2, 4)),
        (3, 0, (5,)),
        (3, 1, (5,)),
    ):
        rows[fact, place, list(numbers)] = 1.0
    first, second = (
        dataclasses.replace(one, before=rows[n], after=rows[n + 2], error=torch.tensor([0.5, 0.25 * (n + 1)]))
        for n in range(2)
    )
    found = FeatureSurvey.of([first, second])
    assert [(each.number, each.facts, each.added) for each in found.shared[1]] == [
        (4, 0, 1),
        (5, 0, 1),
        (2, 2, 0),
        (1, 1, 0),
        (3, 1, 0),
    ]
    assert [mean.mean for mean in found.errors] == [0.5, pytest.approx(0.375)]
    assert [mean.mean for mean in found.kept] == [0, pytest.approx((1 / 3 + 0) / 2)]
    assert found.table().row_count == 7
    plain = FeatureSurvey.of([dataclasses.replace(each, after=None) for each in (first, second)])
    assert plain.kept == ()
    assert [(each.number, each.facts, each.added) for each in plain.shared[1]] == [(2, 2, 0), (1, 1, 0), (3, 1, 0)]
