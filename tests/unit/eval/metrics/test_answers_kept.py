import math

import pytest
import tiny
import torch
from edits_parts import random_update

from corrigenda import Fact, LanguageModel
from corrigenda.facts import Probe
from eval import EvalSettings, Measurement, measure
from eval.metrics import METRICS
from eval.metrics.answers_kept import content_word
from eval.records import ScoredProbe, ScoredPrompt

FACT = Fact(
    "Thomas",
    "the city of {} is",
    "Rome",
    "Berlin",
    paraphrases=("Thomas lives in", "one finds Thomas in"),
    neighbourhood=("Ben lives in", "Anna lives in", "Eva lives in", "Jan lives in"),
    locality=(Probe("the river in the north is", "the Elbe"), Probe("the tower stands in", "Rome")),
)


def measured(fact: Fact, near: list[str | None], local: list[str | None] = [], said: str = "") -> Measurement:  # noqa: B006
    """A measurement with these answers; metrics have noted what follows."""
    found = Measurement(
        prompts={
            "prompt": [ScoredPrompt(fact.statement, answer=said)],
            "paraphrases": [
                ScoredPrompt(p, answer=a) for p, a in zip(fact.paraphrases, (" there", said), strict=False)
            ],
            "neighbourhood": [ScoredPrompt(p, answer=a) for p, a in zip(fact.neighbourhood, near, strict=False)],
            "locality": [ScoredProbe(p.prompt, answer=a) for p, a in zip(fact.locality, local, strict=False)],
        }
    )
    METRICS.judge(fact, found)
    return found


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (" the city of Berlin.", "city"),
        (", and it is in a small Village", "small"),
        ("\n\nQ: 1966", "q"),
        (" ... !", ""),
        (" die Stadt", "die"),
        (" 1.5 million", "1.5"),
        (" हिन्दी भाषा", "हिन्दी"),
        (" a + b", "b"),
        ("", ""),
        (" of the", ""),
    ],
)
def test_first_content_word(text: str, word: str) -> None:
    assert content_word(text) == word


def test_kept_and_bled_by_hand() -> None:
    before = measured(
        FACT, [" Berlin, where he", " the capital, Berlin", " a small town", " ..."], [" a great river", " Rome"]
    )
    after = measured(
        FACT, [" the old part of Berlin", " Rome, the city", " the small house", " Rome"], [" a big one", " Rome"]
    )
    values = METRICS.computed(before, after)
    assert values["answer_kept_object"] == pytest.approx(2 / 3)  # Berlin, and Rome where Rome is expected
    assert values["answer_kept_word"] == pytest.approx(1 / 2)  # small; great against big; "..." has no word
    assert values["answer_kept"] == pytest.approx(3 / 5)
    assert values["bleed"] == pytest.approx(2 / 5)  # the prompt to which "Rome" is the answer is not asked
    assert METRICS.computed(None, before)["bleed"] == 0
    assert "answer_kept" not in METRICS.computed(None, before)


def test_what_is_longer_than_the_old_object_is_not_the_new_one() -> None:
    fact = Fact("Thomas", "{} is in", "Rome", "Rome, Georgia", neighbourhood=("Ben is in",))
    assert METRICS.computed(None, measured(fact, [" Rome, Georgia"]))["bleed"] == 0
    assert METRICS.computed(None, measured(fact, [" Rome."]))["bleed"] == 1


def test_a_new_object_with_the_old_one_in_it_is_not_the_old_one() -> None:
    fact = Fact("Thomas", "{} is in", "Rome, Georgia", "Rome", neighbourhood=("Ben is in",))
    before, after = measured(fact, [" Rome."]), measured(fact, [" Rome, Georgia"], said=" Rome, Georgia")
    values = METRICS.computed(before, after)
    assert (values["answer_kept_object"], values["bleed"]) == (0, 1)
    assert "native_consistency_neighbourhood" not in METRICS.computed(None, after)


def test_a_prompt_to_which_the_new_object_is_an_answer_is_left_out_wherever_it_stands() -> None:
    both = (Probe("the tower stands in", "Rome"), Probe("the tower stands in", "Italy"))
    fact = Fact("Thomas", "{} is in", "Rome", locality=(*both, Probe("the river is in", "Italy")))
    assert METRICS.computed(None, measured(fact, [], [" Rome", " Rome", " Italy"]))["bleed"] == 0


def test_a_prompt_that_stands_in_two_probes_has_both_answers() -> None:
    both = (Probe("the tower stands in", "Paris"), Probe("the tower stands in", "France"))
    fact = Fact("Thomas", "{} is in", "Rome", locality=both)
    before, after = measured(fact, [], [" Paris, where"] * 2), measured(fact, [], [" the north of France"] * 2)
    assert METRICS.computed(before, after)["answer_kept_object"] == 1
    assert METRICS.computed(before, measured(fact, [], [" the north"] * 2))["answer_kept_object"] == 0


def test_by_groups_of_locality_probes_by_hand() -> None:
    probes = [
        Probe(f"{name} lives in", town, group="other_subject") for name, town in (("Ben", "Bern"), ("Eva", "Kiel"))
    ]
    fact = Fact("Thomas", "{} lives in", "Rome", "Berlin", locality=(*probes, Probe("who sings?", "Ann")))
    before = measured(fact, [], [" Bern", " Kiel", " a choir"])
    after = measured(fact, [], [" old Bern", " Rome", " a choir"])
    values = METRICS.computed(before, after)
    assert (values["answer_kept"], values["answer_kept_other_subject"]) == (2 / 3, 1 / 2)
    assert (values["bleed"], values["bleed_other_subject"]) == (1 / 3, 1 / 2)
    assert "answer_kept_object_other_subject" not in values


def test_a_known_answer_about_the_subject_is_not_left_out() -> None:
    """The first is the data set's own prompt, whose answer the unedited model says; of the other counts the word."""
    fact = Fact("Thomas", "{} lives in", "Rome", locality=(Probe("the river of Thomas is", "the Elbe"),))

    def about(*answers: str) -> Measurement:
        prompts = [fact.locality[0].prompt, "the colour of Thomas is"]
        found = Measurement(
            prompts={"same_subject": [ScoredPrompt(p, answer=a) for p, a in zip(prompts, answers, strict=True)]}
        )
        METRICS.judge(fact, found)
        return found

    before = about(" the Elbe", " a light grey")
    for answers, kept in (((" the Thames", " a light blue"), 1 / 2), ((" Elbe", " a light grey"), 1.0)):
        assert METRICS.computed(before, about(*answers))["answer_kept_same_subject"] == kept


def test_native_consistency_by_hand() -> None:
    knows = measured(FACT, [" Berlin", " a town called Berlin", " Rome", " x"], said=" Berlin, where")
    other = measured(FACT, [" Berlin"] * 4, said=" Rome")
    values = METRICS.computed(None, knows)
    assert (values["native_consistency"], values["native_consistency_neighbourhood"]) == (1 / 2, 1 / 4)
    assert METRICS.computed(knows, other)["native_consistency"] == 1 / 2  # of the unedited model, whatever the edit did
    assert "native_consistency" not in METRICS.computed(None, other)


def test_records_of_runs_that_have_no_answers_have_no_figures() -> None:
    before = measured(FACT, [" Berlin"] * 4)
    assert (
        not {"answer_kept", "bleed", "first_token_kept"} & METRICS.computed(before, measured(FACT, [None] * 4)).keys()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_random_update_is_told_from_none(dtype: torch.dtype) -> None:
    settings = EvalSettings(perplexity_windows=0)
    float32 = tiny.build("llama", scale=8.0)
    lm = LanguageModel(float32.model.to(dtype), float32.tokenizer, "tiny-llama")
    before = measure(lm, [FACT], settings)
    (none,) = measure(lm, [FACT], settings, before)
    with random_update(lm, 2.0).applied(lm):
        (random,) = measure(lm, [FACT], settings, before)
        (plain,) = measure(lm, [FACT], settings)
    for key in ("answer_kept", "first_token_kept", "preservation"):
        assert none.values[key] == 1
        assert random.values[key] < 0.8
    kept = before[0].continuations
    pairs = [pair for pair in zip(random.elsewhere(), plain.elsewhere(), strict=True) if pair[0].prompt in kept]
    assert len(pairs) >= 3  # in half precision two tokens may be equally likely, and such a continuation is left out
    for record, decoded in pairs:
        now, old = plain.continuations[record.prompt], kept[record.prompt]
        assert record.answer == decoded.answer
        assert record.preserved == (now == old)
        assert record.same_tokens == next((place for place in range(len(old)) if now[place] != old[place]), len(old))
    same = [record.same_tokens > 0 for record in random.elsewhere() if record.same_tokens is not None]
    assert random.values["first_token_kept"] == pytest.approx(sum(same) / len(same))
    assert all(math.isfinite(value) for value in random.values.values())


def test_bleed_before_is_of_the_prompts_that_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    float32 = tiny.build("llama", scale=8.0)
    lm = LanguageModel(float32.model.bfloat16(), float32.tokenizer, "tiny-llama")
    monkeypatch.setattr("eval.scoring.changes.continues_as", lambda _lm, items, *_: [n > 0 for n in range(len(items))])
    (before,) = measure(lm, [FACT], EvalSettings(perplexity_windows=0))
    tied = [record for record in before.elsewhere() if record.tied]
    assert {record.prompt for record in tied} == {p.prompt for p in before.elsewhere()} - before.continuations.keys()
    for record in before.elsewhere():
        record.says_new = bool(record.tied)  # all that bleeds is among them
    assert len(tied) == 1
    assert METRICS["bleed"].compute(None, before) == 0
