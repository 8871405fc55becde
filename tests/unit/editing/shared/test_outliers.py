import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from editors_parts import editor
from stand_ins import identity_moments
from torch import Tensor

from corrigenda import EditRefusedError, Fact, LanguageModel
from editing.knowledge.how import how_named
from editing.locate_then_edit.prompts import build_prompts
from editing.shared.outliers import outliers

SINK = 1
"""The position whose state is massive in `with_sink`."""
AT_SINK = Fact("Danielle Darrieux", "{} is located in the city of", "Rome", "Paris")
ELSEWHERE = Fact("the Eiffel tower", "{} is located in the city of", "London", "Paris")
ENDS_AT_SINK = Fact("Danielle Darrieux", "{}", "the English language", "French")
CONTEXTS = ("red green . ", "the river is in the north . ")

AT_SUBJECT = ["rome", "memit", "memit_plain", "memit_blue", "memit_rounds", "pmet", "alphaedit", "emmet"]
AT_THE_PROMPTS_END = ["shift", "ultraedit", "mend", "malmen", "finetune", "crispedit", "lora", "grace", "wise_whitened"]


def with_prefixes(name: str, *prefixes: str) -> Any:
    return dataclasses.replace(editor(name), prefixes=prefixes)


def with_sink() -> LanguageModel:
    """A model in which the second token of every text has a massive state."""
    lm = tiny.build("gpt2", scale=8.0)
    lm.model.transformer.wpe.weight.data[SINK] *= 200
    return lm


@pytest.fixture(autouse=True)
def second_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity_moments(monkeypatch, tmp_path)


def deltas(edit: Any) -> list[Tensor]:
    return [edit.delta(layer) for layer in sorted(edit.touched)]


def test_against_the_median_of_all_other_tokens() -> None:
    """By hand: first tokens do not count, neither as usual ones nor as outliers to be held against."""
    texts = [torch.tensor([[90.0, 1.0, 2.0, 3.0]]), torch.tensor([[90.0, 9.0, 2.0]])]  # others: 1 2 3 9 2
    assert outliers(texts, [3, 1]) == [False, True]
    assert outliers(texts, [0, 2]) == [True, False]
    assert outliers([torch.tensor([[5.0]])], [0]) == [False]  # nothing to compare with
    two_layers = [torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 7.0]])]
    assert outliers(two_layers, [3]) == [True]


@pytest.mark.parametrize("family", [*tiny.KINDS, *tiny.MIXTURE_KINDS])
def test_random_models_have_none(family: str) -> None:
    lm, facts = tiny.build(family), [AT_SINK, ELSEWHERE]
    prompts = build_prompts(lm, facts, ["", *CONTEXTS], "{} is a", "subject")
    assert prompts.ordinary(lm, facts, range(lm.n_layers)) is prompts


@pytest.mark.parametrize("name", AT_SUBJECT)
def test_the_context_is_left_out_of_keys_and_targets(name: str) -> None:
    lm = with_sink()
    with pytest.warns(UserWarning, match=r"state is an outlier .* hold only where something precedes it"):
        edit = with_prefixes(name, "", *CONTEXTS).edit(lm, [AT_SINK])
    assert edit.origin.report[0]["outlier_contexts"] == 1
    expected = with_prefixes(name, *CONTEXTS).edit(lm, [AT_SINK])
    assert "outlier_contexts" not in expected.origin.report[0]
    for found, wanted in zip(deltas(edit), deltas(expected), strict=True):
        assert float((found - wanted).norm()) < 1e-4 * float(wanted.norm())


@pytest.mark.parametrize("name", AT_SUBJECT)
def test_a_fact_without_another_context_is_refused_by_name(name: str) -> None:
    lm, bare = with_sink(), with_prefixes(name, "")
    with pytest.raises(EditRefusedError, match=rf"{AT_SINK.id}.*outlier.*put some words before its prompt"):
        bare.edit(lm, [AT_SINK])
    with pytest.warns(UserWarning, match="outlier"):
        edit = bare.edit(lm, [AT_SINK, ELSEWHERE])
    assert "outlier" in edit.origin.report[0]["refused"]
    alone = bare.edit(lm, [ELSEWHERE])
    assert all(torch.equal(left, right) for left, right in zip(deltas(edit), deltas(alone), strict=True))


@pytest.mark.parametrize("name", AT_THE_PROMPTS_END)
def test_a_prompt_that_ends_in_one_is_refused_by_name(name: str) -> None:
    lm, chosen = with_sink(), editor(name)
    with pytest.raises(EditRefusedError, match=rf"{ENDS_AT_SINK.id}.*outlier"):
        chosen.edit(lm, [ENDS_AT_SINK])
    with pytest.warns(UserWarning, match="outlier"):
        edit = chosen.edit(lm, [ENDS_AT_SINK, ELSEWHERE])
    assert "outlier" in edit.origin.report[0]["refused"]
    assert "refused" not in edit.origin.report[1]


def test_entries_of_a_knowledge_base() -> None:
    lm = with_sink()
    with pytest.warns(UserWarning, match="outlier"):
        [entry] = how_named("attached", with_prefixes("emmet", "", *CONTEXTS)).solver(lm, [AT_SINK])
    [expected] = how_named("attached", with_prefixes("emmet", *CONTEXTS)).solver(lm, [AT_SINK])
    torch.testing.assert_close(entry.key, expected.key)
    torch.testing.assert_close(entry.value, expected.value)


def test_what_is_to_be_kept_is_asked_elsewhere_too() -> None:
    lm = with_sink()
    prompts = build_prompts(lm, [AT_SINK, ELSEWHERE], ["", *CONTEXTS], "{} is a", "subject")
    kept = prompts.ordinary(lm, [AT_SINK, ELSEWHERE], [1])
    assert kept.fact.tolist() == [0, 0, 1, 1, 1, 1]
    assert kept.prefix.tolist() == [1, 2, 0, 1, 2, -1]
    assert kept.bare_out == [True, False]
    assert kept.outlying.tolist() == [1, 0]
    assert kept.of_facts([1]).outlying.tolist() == [0]
