import dataclasses
import json
from pathlib import Path

import pytest
import tiny
import torch
from editors_parts import RELATIONS, TOWER, said
from relation_parts import jacobian, plain
from torch import Tensor

from corrigenda import EditRefusedError, Fact, LanguageModel
from corrigenda.errors import SettingsError
from corrigenda.linear_relations import affine_maps, low_rank_inverses, read_samples
from editing import Lre

LAYER = 1
EDITOR = Lre(layer=LAYER, samples=RELATIONS, jacobians=2, rank=6)
CITY = "{} is located in the city of"
TRAINING = [("Big Ben", "London"), ("the river", "Rome")]
"""The first two samples of the file."""


lm = pytest.fixture(tiny.steep)


def asked(lm: LanguageModel, subject: str) -> tuple[list[int], int]:
    """The tokens of a subject behind the training samples of others, and where it ends."""
    before = "".join(f"{CITY.format(name)} {city}\n" for name, city in TRAINING if name != subject)
    ids, after = lm.tokens(before + CITY.format(subject)), lm.tokens(CITY.format(""))
    return ids, len(ids) - len(after) - 1


def last(lm: LanguageModel, subject: str) -> Tensor:
    ids, position = asked(lm, subject)
    return plain(lm, ids, LAYER + 1, position, None)[1]


def test_what_is_added_by_brute_force(lm: LanguageModel) -> None:
    edit = EDITOR.edit(lm, [TOWER])
    weight = torch.stack([jacobian(lm, *_placed(lm, name)) for name, _ in TRAINING]).mean(0).double()
    with torch.no_grad():
        # Of the file's samples the river alone has the new object.
        difference = (last(lm, "the river") - last(lm, TOWER.subject)).double()
    u, singular, vh = torch.linalg.svd(weight)
    wanted = torch.stack([vh[n] * (u[:, n] @ difference) / singular[n] for n in range(6)]).sum(0)
    [layer] = edit.layers
    assert layer.layer == LAYER
    torch.testing.assert_close(layer.values[0].double(), wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
    assert edit.origin.report[0]["delta_norm"] == pytest.approx(float(wanted.norm()), rel=1e-3)


def test_samples_are_joined_as_the_fact_is(lm: LanguageModel) -> None:
    """What stands between a prompt and its object is the fact's, also in the examples before it."""
    joined = dataclasses.replace(TOWER, joint="")
    asked = read_samples(lm, *_examples(joined), [LAYER + 1], [LAYER + 1])
    weight = affine_maps(lm, asked).at(LAYER + 1)[0]
    row = [Fact(joined.subject, CITY, None, "Rome"), Fact("the river", CITY, None, "Rome")]
    others = [_examples(joined)[0], _examples(joined)[0][:1]]
    read = read_samples(lm, row, others, [LAYER + 1], [LAYER + 1])
    wanted = low_rank_inverses(weight, [6])[0] @ (read.o[1] - read.o[0])
    found = EDITOR.edit(lm, [joined]).layers[0].values[0]
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


def _examples(fact: Fact) -> tuple[list[Fact], list[list[Fact]]]:
    facts = [Fact(name, CITY, None, city, joint=fact.joint) for name, city in TRAINING]
    return facts, [[facts[1]], [facts[0]]]


def _placed(lm: LanguageModel, subject: str) -> tuple[list[int], int, int]:
    ids, position = asked(lm, subject)
    return ids, LAYER + 1, position


def test_the_subjects_state_moves_by_it_and_other_prompts_do_not(lm: LanguageModel) -> None:
    ids, at = lm.tokens(TOWER.statement), len(lm.tokens(TOWER.subject)) - 1
    others = [Fact("Danielle Darrieux", "the mother tongue of {} is", "English")]
    edit = EDITOR.edit(lm, [TOWER])
    with torch.no_grad():
        before, untouched = plain(lm, ids, LAYER + 1, at, None)[0], said(lm, others)
        with edit.applied(lm):
            after = plain(lm, ids, LAYER + 1, at, None)[0]
            assert torch.equal(said(lm, others), untouched)
    torch.testing.assert_close(after - before, edit.layers[0].values[0], rtol=1e-3, atol=1e-4)


def test_samples_are_of_the_relation_or_of_the_prompt(lm: LanguageModel, tmp_path: Path) -> None:
    other = dataclasses.replace(TOWER, prompt="{} stands in", relation="city")
    assert EDITOR.edit(lm, [other]).origin.report[0]["samples"] == 4
    with pytest.raises(EditRefusedError, match="0 other subjects of the relation 'towers'"):
        EDITOR.edit(lm, [dataclasses.replace(TOWER, relation="towers")])
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"name": "one", "prompt_templates": [CITY], "samples": [_sample("Thomas", "Rome")]}))
    few = dataclasses.replace(EDITOR, samples=str(file))
    with pytest.raises(
        EditRefusedError, match=r"1 other subject of the relation .* in .*one\.json, and its map needs 2"
    ):
        few.edit(lm, [TOWER])
    given = Fact("Big Ben", CITY, "Paris", "London")  # a fact of the call is a sample of its old object
    edit = few.edit(lm, [TOWER, dataclasses.replace(given, target_true="Rome")])
    assert [report["samples"] for report in edit.origin.report] == [2, 2]
    with pytest.raises(EditRefusedError, match=r"no other subject of the relation .* has the object 'piano'"):
        EDITOR.edit(lm, [dataclasses.replace(TOWER, target_new="piano")])


def _sample(subject: str, answer: str) -> dict[str, str]:
    return {"subject": subject, "object": answer}


def test_where_it_cannot_be(lm: LanguageModel) -> None:
    with pytest.raises(SettingsError, match="layer 3 is the last"):
        dataclasses.replace(EDITOR, layer=-1).edit(lm, [TOWER])
    with pytest.raises(EditRefusedError, match=r"0 other subjects of the relation .* of the facts that ship"):
        Lre(layer=LAYER).edit(lm, [TOWER])
