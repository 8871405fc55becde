import dataclasses
import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny
import torch
from by_hooks import logits
from edits_parts import random_update
from stand_ins import identity_moments

from corrigenda import Edit, Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.disturbance import (
    MOST_KL,
    MOST_NATS,
    PROMPTS,
    TEXTS,
    Disturbance,
    DisturbanceWarning,
    disturbance,
    known,
    noted,
)
from editing import InContext
from eval import EvalSettings
from eval.protocols.runs import attempt

FACT = Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris")


@pytest.fixture(autouse=True)
def second_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity_moments(monkeypatch, tmp_path)


@pytest.fixture
def lm() -> LanguageModel:
    lm = tiny.build("llama", scale=8.0)
    lm.model.lm_head.weight.data *= 5  # a random model is sure of nothing, and nothing could be wrecked
    return lm


def of_size(lm: LanguageModel, size: float, facts: Sequence[Fact] = (FACT,)) -> LowRankEdit:
    """A random edit of one layer, so many times as large as what it changes."""
    edit = random_update(lm, size, rank=3)
    return dataclasses.replace(edit, origin=Origin(lm.name, lm.fingerprint, "outside", facts=tuple(facts)))


@dataclasses.dataclass(frozen=True)
class FromOutside:
    """An editor that looks at nothing."""

    size: float
    name: str = "outside"

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> Edit:
        return of_size(lm, self.size, facts)


def test_the_figures_by_whole_forwards_of_each_text_by_itself(lm: LanguageModel) -> None:
    edit = of_size(lm, 0.5)

    def log_probs(text: str) -> torch.Tensor:
        return logits(lm, lm.tokens(text)).double().log_softmax(-1)

    def nll() -> float:
        parts = [-log_probs(text)[range(len(lm.tokens(text)) - 1), lm.tokens(text)[1:]] for text in TEXTS]
        return float(torch.cat(parts).mean())

    before, ends = nll(), [log_probs(prompt)[-1] for prompt in PROMPTS]
    with edit.applied(lm):
        after = nll()
        kls = [(old.exp() * (old - log_probs(prompt)[-1])).sum() for old, prompt in zip(ends, PROMPTS, strict=True)]
    found = disturbance(lm, edit)
    assert found.nats == pytest.approx(after - before, abs=1e-4)
    assert found.kl == pytest.approx(float(sum(kls)) / len(kls), abs=1e-4)
    assert found.kl > 0.01


def test_the_model_before_is_run_once_for_all_edits_of_it(lm: LanguageModel) -> None:
    calls: list[int] = []
    handle = lm.architecture.values(0).register_forward_hook(lambda *_: calls.append(1))
    found = [disturbance(lm, of_size(lm, size)) for size in (0.5, 0.25)]
    assert len(calls) == 1 + 2
    with of_size(lm, 0.1).applied(lm):
        above = disturbance(lm, of_size(lm, 0.5))
    assert len(calls) == 3 + 2
    handle.remove()
    assert len({one.nats for one in (*found, above)}) == 3
    lm.looked_at = None
    assert disturbance(lm, of_size(lm, 0.25)) == found[1]


def test_a_wrecking_edit_says_so_and_a_small_one_does_not(lm: LanguageModel) -> None:
    with pytest.warns(DisturbanceWarning, match=r"outside: the edit disturbs other texts: .* \(bound") as told:
        wreck = noted(lm, of_size(lm, 30.0), 1)
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    found = known(wreck)
    assert found is not None
    assert found.beyond
    assert found.nats > MOST_NATS or found.kl > MOST_KL
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not known(noted(lm, of_size(lm, 1e-3), 1)).beyond  # type: ignore[union-attr]


def test_figures_that_are_not_finite_are_beyond_and_absent() -> None:
    assert Disturbance(math.nan, 0.0).report() == {"disturbance": {"kl": 0.0, "beyond": True}}
    assert Disturbance(0.0, math.inf).report() == {"disturbance": {"nats": 0.0, "beyond": True}}


def test_the_warning_as_an_error_refuses(lm: LanguageModel) -> None:
    before = [tensor.clone() for tensor in lm.model.state_dict().values()]
    edit = of_size(lm, 30.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DisturbanceWarning)
        with pytest.raises(DisturbanceWarning):
            noted(lm, edit, 1)
    assert not lm.edits
    assert all(torch.equal(old, new) for old, new in zip(before, lm.model.state_dict().values(), strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [1e-3, 30.0])
@pytest.mark.parametrize("strict", [False, True])
def test_runs_look_at_edits_of_editors_from_outside_and_may_refuse_them(
    size: float, strict: bool, lm: LanguageModel
) -> None:
    made = attempt(lm, FromOutside(size), EvalSettings(strict=strict), [FACT])
    if strict and size > 1:
        assert made.edit is None
        assert made.error.startswith("refused: it disturbs other texts: ")
        assert not made.crashed
    else:
        assert made.edit is not None
        assert made.edit.origin.report[-1]["disturbance"]["beyond"] is (size > 1)


def test_a_text_before_the_prompt_changes_no_model(lm: LanguageModel) -> None:
    edit = InContext().edit(lm, [FACT])
    assert noted(lm, edit, 1) is edit
