import math
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
import tiny
import torch
from edits_parts import random_update

from corrigenda import Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.data.side_effects import YES, fact_checks, negations, reversals, running_text, same_subject
from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import Site
from eval import METRICS, EvalSettings, Measurement, evaluate, measure
from eval.evaluation import NOT_FINITE, failed, judged
from eval.leaderboard.columns import columns, ranking
from eval.measure import not_measured
from eval.metrics.side_effects import METRICS as SIDE_EFFECTS
from eval.records import SIDE_KINDS, Record, ScoredCheck, ScoredProbe, ScoredPrompt

FACT = Fact("Louvre", "{} is located in", "Rome", "Paris", neighbourhood=("the river is located in",))
SAID = [f"{key}_{kind}" for kind in ("same_subject", "running_text") for key in ("answer_kept", "bleed")]
KEYS = [*(metric.key for metric in SIDE_EFFECTS), *SAID]
SETTINGS = EvalSettings(max_new_tokens=3, preservation_tokens=1, perplexity_windows=0, side_effects=True)


def logs(*probabilities: float) -> tuple[float, ...]:
    return tuple(map(math.log, probabilities))


def value(key: str, after: Measurement, before: Measurement | None = None) -> float | None:
    return METRICS[key].compute(before, after)


def test_negations_by_hand() -> None:
    def measured(*pairs: tuple[tuple[float, ...], tuple[float, ...]]) -> Measurement:
        found = Measurement({"negations": [ScoredPrompt("x", logs(*new), logs(*true)) for new, true in pairs]})
        METRICS.judge(FACT, found)
        return found

    before = measured(((0.1,), (0.5,)), ((0.2, 0.2), (0.5,)), ((0.25,), (0.25,)))
    after = measured(((0.6,), (0.2,)), ((0.4, 0.1), (0.5,)), ((0.25,), (0.25,)))
    assert value("negation_rate", before) == 0  # a tie is not the new object
    assert value("negation_rate", after) == pytest.approx(1 / 3)
    assert value("negation_rate", measured(((math.nan,), (0.5,)))) is None  # no number is no success
    # log P is the mean over tokens: sqrt(0.4 * 0.1) = sqrt(0.2 * 0.2)
    assert value("negation_gain", after, before) == pytest.approx((math.log(6) + 0 + 0) / 3)
    assert value("negation_gain", after) is None


def test_without_an_old_object_there_is_a_gain_and_no_rate() -> None:
    before, after = (Measurement({"negations": [ScoredPrompt("x", logs(p))]}) for p in (0.1, 0.2))
    assert value("negation_rate", after) is None
    assert value("negation_gain", after, before) == pytest.approx(math.log(2))


def test_fact_checks_by_hand() -> None:
    records: list[Record] = [
        ScoredCheck("a", logs(0.6), logs(0.2)),
        ScoredCheck("b", logs(0.2), logs(0.6)),
        ScoredCheck("c", logs(0.3), logs(0.3)),
        ScoredCheck("d", logs(0.4, 0.1), logs(0.1)),
    ]
    found = Measurement({"fact_checks": records})
    assert value("fact_check_success", found) == 0.5  # a tie is no success
    assert value("fact_check_magnitude", found) == pytest.approx((math.log(3) - math.log(3) + 0 + math.log(2)) / 4)


def test_reversals_by_hand() -> None:
    before = Measurement({"reversals": [ScoredProbe("x", logs(0.1, 0.1), 0.5), ScoredProbe("y", logs(0.5), 1.0)]})
    after = Measurement({"reversals": [ScoredProbe("x", logs(0.1, 0.9), 0.5), ScoredProbe("y", logs(0.25), 1.0)]})
    assert value("reversal_accuracy", after) == 0.5  # half of the tokens of a name is not the name
    assert value("reversal_gain", after, before) == pytest.approx((math.log(3) - math.log(2)) / 2)
    assert value("reversal_gain", after) is None


def test_other_prompts_about_the_subject_by_hand() -> None:
    found = Measurement(
        {
            "same_subject": [ScoredPrompt("x", kl=0.25, preserved=True), ScoredPrompt("y", kl=0.75, preserved=False)],
            "neighbourhood": [ScoredPrompt("z", kl=9.0, preserved=False)],
        }
    )
    assert value("same_subject_preservation", found) == 0.5
    assert value("same_subject_kl", found) == 0.5
    assert value("preservation", found) == 0  # the subject's own prompts are not among those elsewhere
    assert value("neighbourhood_kl", found) == 9


def test_what_was_not_measured_is_absent() -> None:
    empty = Measurement()
    assert [key for key in KEYS if value(key, empty, empty) is not None] == []


def model_that_reads(fact: Fact, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """A tiny model whose words are those of a fact's prompts."""
    prompts = [fact.statement, *negations(fact), *reversals(fact), *same_subject(fact), *fact.neighbourhood]
    texts = [*prompts, *(check.prompt for check in fact_checks(fact)), str(fact.target_true), "Yes No Louvre"]
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)})
    assert len(words) <= len(tiny.WORDS)
    monkeypatch.setattr(tiny, "WORDS", words)
    return tiny.build("llama", scale=8.0)  # of its words some are much more likely than others


def steered(lm: LanguageModel, wanted: Mapping[str, str | None]) -> LowRankEdit:
    """An edit of the last layer after which each prompt is followed by a word; None: what follows stays.

    The rows of A select a prompt by its coefficients (an exact solution: there are fewer prompts than neurons), those
    of B are the words' unembeddings.
    """
    layer = lm.n_layers - 1
    batch = lm.batch([lm.tokens(prompt) for prompt in wanted])
    with intervene(lm, Site("coefficients", layer), Read(), batch.lengths - 1) as seen, torch.no_grad():
        forward_logits(lm, batch, batch.lengths - 1)
    words = sorted({word for word in wanted.values() if word is not None})
    chosen = torch.tensor([[float(word == one) for one in words] for word in wanted.values()], dtype=torch.float64)
    left = torch.linalg.lstsq(seen.value.double(), chosen).solution
    ids = [lm.tokenizer.convert_tokens_to_ids(word) for word in words]
    right = lm.model.get_output_embeddings().weight[ids].detach().double()
    right = 1e4 * right / right.norm(dim=1, keepdim=True)
    return LowRankEdit.of(lm, Origin(lm.name, lm.fingerprint, "test"), {layer: (left, right)})


def after(lm: LanguageModel, edit: LowRankEdit) -> dict[str, float]:
    with edit.applied(lm):
        [case] = evaluate(lm, [FACT], SETTINGS).cases
    assert case.error == ""
    return case.after.values


def test_an_edit_that_does_what_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_that_reads(FACT, monkeypatch)
    wanted: dict[str, str | None] = {FACT.statement: "Rome"}
    wanted |= dict.fromkeys(negations(FACT), "Paris")
    wanted |= {check.prompt: check.expected for check in fact_checks(FACT)}
    wanted |= dict.fromkeys(reversals(FACT), "Louvre")
    wanted |= dict.fromkeys(same_subject(FACT), None)
    values = after(lm, steered(lm, wanted))
    assert values["efficacy_success"] == 1
    assert values["negation_rate"] == 0
    assert values["negation_gain"] < 0
    assert values["fact_check_success"] == 1
    assert values["fact_check_magnitude"] > 0
    assert values["reversal_accuracy"] == 1
    assert values["reversal_gain"] > 0
    assert values["same_subject_preservation"] == 1
    assert values["same_subject_kl"] == pytest.approx(0, abs=1e-5)  # of rows in other batches


def test_an_edit_that_does_what_it_should_not(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_that_reads(FACT, monkeypatch)
    wanted: dict[str, str | None] = dict.fromkeys([FACT.statement, *negations(FACT), *same_subject(FACT)], "Rome")
    wanted |= dict.fromkeys((check.prompt for check in fact_checks(FACT)), YES)
    wanted |= dict.fromkeys(reversals(FACT), "Rome")
    values = after(lm, steered(lm, wanted))
    assert values["efficacy_success"] == 1
    assert values["negation_rate"] == 1
    assert values["negation_gain"] > 0
    assert values["fact_check_success"] == 0.5
    assert values["fact_check_magnitude"] == pytest.approx(0, abs=1.0)  # of margins of tens of nats
    assert values["reversal_accuracy"] == 0
    assert values["reversal_gain"] < 0
    assert values["same_subject_preservation"] == 0
    assert values["same_subject_kl"] > 1


def test_answers_kept_and_bleed_of_the_subject_by_hand() -> None:
    def answers(*said: str) -> Measurement:
        records = [ScoredPrompt(str(number), answer=one) for number, one in enumerate(said)]
        found = Measurement({"same_subject": records[:3], "running_text": records[3:], "neighbourhood": []})
        METRICS.judge(FACT, found)
        return found

    before = answers(" the old king", " a museum", " ...", " hot coffee", " cold tea")
    after = answers(" of old", " Rome, a city", " Rome", " coffee", " Rome")
    values = METRICS.computed(before, after)
    assert values["answer_kept_same_subject"] == 1 / 2  # "old" stayed; what had no word before says nothing
    assert values["bleed_same_subject"] == 2 / 3
    assert values["answer_kept_running_text"] == 0
    assert values["bleed_running_text"] == 1 / 2
    assert "answer_kept" not in values  # that one is of other subjects


def test_a_gate_that_looks_at_half_of_the_question_fails_one_group_of_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_that_reads(FACT, monkeypatch)
    about_it = [*same_subject(FACT), *running_text(FACT)]
    by_subject = steered(lm, dict.fromkeys([FACT.statement, *about_it], "Rome") | dict.fromkeys(FACT.neighbourhood))
    by_relation = steered(lm, dict.fromkeys([FACT.statement, *FACT.neighbourhood], "Rome") | dict.fromkeys(about_it))
    subject, relation = (after(lm, edit) for edit in (by_subject, by_relation))
    groups = ("", "_same_subject", "_running_text")
    assert [subject[f"answer_kept{group}"] for group in groups] == [1, 0, 0]
    assert [subject[f"bleed{group}"] for group in groups] == [0, 1, 1]
    assert [relation[f"answer_kept{group}"] for group in groups] == [0, 1, 1]
    assert [relation[f"bleed{group}"] for group in groups] == [1, 0, 0]


def test_only_where_the_settings_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_that_reads(FACT, monkeypatch)
    with random_update(lm, 1.0).applied(lm):
        [case] = evaluate(lm, [FACT], replace(SETTINGS, side_effects=False)).cases
        [more] = evaluate(lm, [FACT], SETTINGS).cases
        [cheap] = evaluate(lm, [FACT], replace(SETTINGS, generate=False)).cases
    assert not SIDE_KINDS & case.after.prompts.keys()
    assert not case.after.values.keys() & set(KEYS)
    assert more.after.prompts.keys() >= SIDE_KINDS
    assert more.after.values.keys() >= set(KEYS)
    others = {key: one for key, one in more.after.values.items() if key not in KEYS}
    assert others == pytest.approx(case.after.values, abs=1e-4)  # other batches
    assert set(KEYS) - cheap.after.values.keys() == {"same_subject_preservation", *SAID}  # they need a decoding


def test_an_edit_that_failed_does_not_hold_as_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_that_reads(FACT, monkeypatch)
    state = dict.fromkeys(KEYS, 0.75)
    assert failed(Measurement(values=state)).values == state | {"fact_check_success": 0.0}
    missed = not_measured(lm, FACT, "too long", SETTINGS).values
    assert missed["fact_check_success"] == 0
    assert not missed.keys() & (set(KEYS) - {"fact_check_success"})
    assert "fact_check_success" not in not_measured(lm, FACT, "too long", replace(SETTINGS, side_effects=False)).values


def test_a_prompt_of_ours_that_is_too_long_is_found_before_anything_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_that_reads(FACT, monkeypatch)
    long = replace(FACT, same_subject=("Rome " * 80 + "is",))
    [found] = measure(lm, [long], SETTINGS)
    assert "same_subject" in found.error
    [found] = measure(lm, [long], replace(SETTINGS, side_effects=False))
    assert found.error == ""


def test_columns_of_the_leaderboard_that_rank_nothing() -> None:
    shown = set(columns()) & set(KEYS)
    assert shown == {
        *("negation_rate", "fact_check_success", "reversal_accuracy"),
        *("same_subject_preservation", "same_subject_kl", "running_text_kl", *SAID),
    }
    assert not shown & set(ranking())


def test_an_edit_that_leaves_no_numbers_in_a_fact_check_is_noticed() -> None:
    state = {"values": {}, "prompts": {"fact_checks": [{"prompt": "x", "log_probs_right": [None, -1.0]}]}}
    found = Measurement.from_dict(state)
    assert math.isnan((found.checks()[0].log_probs_right or [0.0])[0])
    assert found.to_dict() == state
    assert judged(FACT, Measurement(), found).error.startswith(NOT_FINITE)
