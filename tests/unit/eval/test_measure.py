import dataclasses
import json
import math
from unittest.mock import patch

import pytest
import tiny
import torch
from by_hooks import logits
from edits_parts import origin, random_update
from torch import Tensor

from corrigenda import ContextEdit, Fact, LanguageModel
from corrigenda.errors import SettingsError
from corrigenda.facts import Probe
from eval import METRICS, Case, EvalSettings, Evaluation, Measurement, evaluate, measure
from eval.evaluation import NOT_FINITE, judged
from eval.metrics.fluency import ngram_entropy
from eval.scoring.fitting import jobs_of

SMALL = EvalSettings(
    max_new_tokens=6, preservation_tokens=4, fluency_tokens=12, perplexity_windows=3, perplexity_window=16
)
SCORES_ONLY = EvalSettings(generate=False, perplexity_windows=0)

EIFFEL = Fact(
    subject="the Eiffel tower",
    prompt="{} is located in",
    target_new="Rome",
    target_true="Paris",
    paraphrases=("the city with the Eiffel tower is", "the Eiffel tower stands in"),
    neighbourhood=("the river is located in", "the tower in the north stands in"),
    locality=(Probe("Big Ben is located in", "London"),),
    portability=(Probe("the Eiffel tower is in the country", "Italy"), Probe("in the city of the tower", "Italian")),
    generation=("the Eiffel tower", "the Eiffel tower is"),
)
BEN = Fact("Big Ben", "{} stands in", "the capital", "Paris", neighbourhood=("the tower stands in",))
THOMAS = Fact("Thomas", "{} plays", "the guitar", "a violin", paraphrases=("sport was on , Thomas plays",))
INSERT = Fact(
    "Danielle", "the mother tongue of {} is", "French", paraphrases=("Danielle speaks",), generation=("Danielle",)
)
ERASE = Fact(
    "Danielle Darrieux",
    "{} speaks",
    None,
    "French",
    neighbourhood=("Thomas speaks",),
    locality=(Probe("one two", "three"),),
)


PROBABILITY = {"efficacy_success", "efficacy_magnitude"}
PARAPHRASE = {"paraphrase_success", "paraphrase_magnitude"}
NEIGHBOURHOOD = {"neighbourhood_success", "neighbourhood_magnitude", "neighbourhood_success_plus"}
ANSWERS = {"token_accuracy", "free_generation_strict", "free_generation_lenient"}
KEPT = {"preservation", "blank_answers", "answer_kept", "answer_kept_word", "first_token_kept"}
COMPARED = KEPT | {"neighbourhood_kl", "perplexity_drift"}
LOCALITY = {"locality_token_agreement", "locality_kl"}


@pytest.mark.parametrize(
    ("fact", "expected", "compared"),
    [
        (
            EIFFEL,
            PROBABILITY | PARAPHRASE | NEIGHBOURHOOD | ANSWERS | {f"paraphrase_{key}" for key in ANSWERS}
            | {f"portability_{key}" for key in ANSWERS} | {"fluency", "bleed"},
            COMPARED | LOCALITY,
        ),
        (BEN, PROBABILITY | NEIGHBOURHOOD | ANSWERS | {"bleed"}, COMPARED - {"answer_kept", "answer_kept_word"}),
        (THOMAS, PROBABILITY | PARAPHRASE | ANSWERS | {f"paraphrase_{key}" for key in ANSWERS}, {"perplexity_drift"}),
        (INSERT, ANSWERS | {f"paraphrase_{key}" for key in ANSWERS} | {"fluency"}, {"perplexity_drift"}),
        (ERASE, set(), COMPARED | LOCALITY),
    ],
    ids=lambda value: value.verb if isinstance(value, Fact) else "",
)  # fmt: skip
def test_what_has_no_prompts_is_absent(lm: LanguageModel, fact: Fact, expected: set[str], compared: set[str]) -> None:
    before = measure(lm, [fact], SMALL)
    assert before[0].values.keys() == expected | {"log_perplexity"}
    (after,) = measure(lm, [fact], SMALL, before)
    assert after.values.keys() == expected | compared | {"log_perplexity"}
    summary = Evaluation((Case(fact, before[0], after),)).metrics
    assert summary.keys() - {"score"} == expected | compared | {"log_perplexity"}
    assert ("score" in summary) == (fact is EIFFEL)
    assert summary.keys() <= METRICS.keys()
    for key, values in summary.items():
        assert (values["before"] is not None) == (key not in COMPARED | LOCALITY)


def test_what_is_not_asked_for_is_not_done(lm: LanguageModel) -> None:
    (found,) = measure(lm, [EIFFEL], SCORES_ONLY)
    assert not any("generation" in key or key in ("fluency", "log_perplexity") for key in found.values)
    assert "efficacy_success" in found.values


def test_what_is_as_long_as_the_model_reads_is_compared(lm: LanguageModel) -> None:
    """With the 10 tokens that may be added, of which the last is not read."""
    assert lm.context_length is not None
    prompt = " ".join(["the"] * (lm.context_length - SMALL.preservation_tokens + 1))
    fact = Fact("Thomas", "{} is in", "Rome", neighbourhood=(prompt,))
    before = measure(lm, [fact], SMALL)
    (after,) = measure(lm, [fact], SMALL, before)
    assert after.values["preservation"] == 1


def test_where_it_cannot_go_on_as_before_it_is_said(lm: LanguageModel) -> None:
    """Also where no answers are asked for: a text before the prompt leaves room for the target alone."""
    fact = Fact("Thomas", "{} is in", "Rome", neighbourhood=(" ".join(["the"] * 20),))
    before = measure(lm, [fact], SMALL)
    assert lm.context_length is not None
    with ContextEdit(origin(lm), "the " * (lm.context_length - 21)).applied(lm):
        (after,) = measure(lm, [fact], SCORES_ONLY, before)
    assert "kept: a prompt with 4 new tokens has 66 tokens, and tiny-llama reads at most 64" in after.error


def build(family: str = "llama") -> LanguageModel:
    return tiny.build(family, scale=8.0)


def next_token(lm: LanguageModel, prompt: str) -> Tensor:
    return logits(lm, lm.tokenizer(prompt)["input_ids"])[-1].double().log_softmax(-1)


def continuation(lm: LanguageModel, prompt: str) -> list[int]:
    """The most likely tokens, one after another, end tokens left out: by whole forwards."""
    ids = lm.tokenizer(prompt)["input_ids"]
    added: list[int] = []
    for _ in range(SMALL.preservation_tokens):
        likeliest = logits(lm, ids + added)[-1].argsort(descending=True).tolist()
        added.append(next(token for token in likeliest if token not in lm.end_ids))
    return added


def test_comparison_with_before() -> None:
    lm = build()
    prompts = [*EIFFEL.neighbourhood, *(probe.prompt for probe in EIFFEL.locality), *BEN.neighbourhood]
    logs = [next_token(lm, prompt) for prompt in prompts]
    answers = [continuation(lm, prompt) for prompt in prompts]
    before = measure(lm, [EIFFEL, BEN], SMALL)
    with random_update(lm, 0.35).applied(lm):
        after = measure(lm, [EIFFEL, BEN], SMALL, before)
        kls = [float((p.exp() * (p - next_token(lm, prompt))).sum()) for p, prompt in zip(logs, prompts, strict=True)]
        kept = [continuation(lm, prompt) == answer for prompt, answer in zip(prompts, answers, strict=True)]
    assert after[0].values["neighbourhood_kl"] == pytest.approx(sum(kls[:2]) / 2, rel=1e-3)
    assert after[0].values["locality_kl"] == pytest.approx(kls[2], rel=1e-3)
    assert after[1].values["neighbourhood_kl"] == pytest.approx(kls[3], rel=1e-3)
    assert 0 < sum(kept) < 4
    assert after[0].values["preservation"] == pytest.approx(sum(kept[:3]) / 3)
    assert after[1].values["preservation"] == kept[3]
    assert [record["preserved"] for record in after[0].prompts["neighbourhood"]] == kept[:2]
    assert [record["answer"] for record in before[0].prompts["neighbourhood"]] == [lm.text(a) for a in answers[:2]]
    drift = after[0].values["log_perplexity"] - before[0].values["log_perplexity"]
    assert after[0].values["perplexity_drift"] == pytest.approx(drift)
    assert abs(drift) > 0.005


def test_a_target_longer_than_an_answer_has_room_in_it() -> None:
    lm = build()
    long = lm.generate(EIFFEL.statement, 2 * SMALL.max_new_tokens).strip()
    fact = dataclasses.replace(EIFFEL, target_new=long, portability=(Probe(EIFFEL.statement, long),))
    (found,) = measure(lm, [fact], SMALL)
    assert found.values["free_generation_strict"] == found.values["portability_free_generation_strict"] == 1


def test_where_an_answer_of_several_lines_ends() -> None:
    fact = Fact("f", "def {}():", "\n    return 42", aliases=("x",))
    jobs = list(jobs_of(build(), fact, SMALL))
    assert [job.several_lines for job in jobs] == [True]
    assert not any(job.several_lines for job in jobs_of(build(), EIFFEL, SMALL))


def test_each_prompt_is_tokenised_once() -> None:
    lm = build()
    before = measure(lm, [EIFFEL], SMALL)
    for old in (None, before):
        with patch.object(LanguageModel, "tokens", autospec=True, side_effect=LanguageModel.tokens) as read:
            measure(lm, [EIFFEL], SMALL, old)
        prompts = [call.args[1] for call in read.call_args_list]
        assert len(prompts) == len({*prompts}) > 10


def test_portability_probes_with_one_prompt_have_their_own_answers() -> None:
    lm = build()
    prompt = "the Eiffel tower is in the country"
    word = lm.generate(prompt, 1).strip()
    probes = (Probe(prompt, word), Probe(prompt, "nonsense"))
    for order in (probes, probes[::-1]):
        (found,) = measure(lm, [dataclasses.replace(EIFFEL, portability=order)], SMALL)
        assert found.values["portability_free_generation_strict"] == 0.5
        assert found.values["portability_token_accuracy"] == 0.5
        assert [record["strict"] for record in found.prompts["portability"]] == [probe is probes[0] for probe in order]


def test_fluency_is_of_the_sampled_texts() -> None:
    lm = build()
    (found,) = measure(lm, [EIFFEL], SMALL)
    texts = found.prompts["generation"]
    tokens = [record["text"].split() for record in texts]
    assert [record["prompt"] for record in texts] == list(EIFFEL.generation)
    assert found.values["fluency"] == pytest.approx(sum(map(ngram_entropy, tokens)) / 2)
    assert all(len(ids) == SMALL.fluency_tokens for ids in tokens)
    (again,) = measure(lm, [EIFFEL], SMALL)
    (other,) = measure(lm, [EIFFEL], dataclasses.replace(SMALL, seed=1))
    assert again.prompts["generation"] == texts
    assert other.prompts["generation"] != texts
    longest_first = dataclasses.replace(
        EIFFEL, generation=("Paris is a city in the north of France and it", "Paris is")
    )
    (found,) = measure(lm, [longest_first], SMALL)
    assert [record["prompt"] for record in found.prompts["generation"]] == list(longest_first.generation)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_values_do_not_depend_on_batching(family: str) -> None:
    lm = build(family)
    facts = [EIFFEL, BEN, THOMAS, INSERT, ERASE]
    small = dataclasses.replace(SMALL, max_tokens=20)
    before = measure(lm, facts, SMALL)
    with random_update(lm, 0.35).applied(lm):
        together = measure(lm, facts, SMALL, before)
        in_small_batches = measure(lm, facts, small, before)
        alone = [measure(lm, [fact], SMALL, [old])[0] for fact, old in zip(facts, before, strict=True)]
    for whole, part, single in zip(together, in_small_batches, alone, strict=True):
        for other in (part, single):
            assert other.values == pytest.approx(whole.values, abs=1e-4)
            for kind, records in whole.prompts.items():
                said = [(r["prompt"], r.get("answer"), r.get("text"), r.get("preserved")) for r in records]
                assert said == [
                    (r["prompt"], r.get("answer"), r.get("text"), r.get("preserved")) for r in other.prompts[kind]
                ]


def test_evaluate_compares_with_the_unedited_model() -> None:
    lm = build()
    facts = [EIFFEL, BEN]
    plain = measure(lm, facts, SMALL)
    first, second = random_update(lm, 0.35), random_update(lm, 0.2, layer=2)
    with first.applied(lm), second.applied(lm):
        bits = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
        edited = measure(lm, facts, SMALL)
        found = evaluate(lm, facts, SMALL)
        assert list(lm.edits) == [first, second]
        assert all(torch.equal(tensor, bits[name]) for name, tensor in lm.model.state_dict().items())
    for case, before, after in zip(found.cases, plain, edited, strict=True):
        assert case.before is not None
        assert case.before.values == before.values
        assert {key: case.after.values[key] for key in after.values} == after.values
        assert case.after.values["efficacy_magnitude"] != before.values["efficacy_magnitude"]
        assert case.after.values["neighbourhood_kl"] > 0
    magnitudes = [values["efficacy_magnitude"] for values in (m.values for m in plain)]
    assert found.metrics["efficacy_magnitude"]["before"] == pytest.approx(sum(magnitudes) / 2)


def test_evaluate_without_an_edit_has_no_before() -> None:
    lm = build()
    found = evaluate(lm, [EIFFEL, BEN], SMALL)
    assert all(case.before is None for case in found.cases)
    assert all(values["before"] is None for values in found.metrics.values())
    assert not COMPARED & found.metrics.keys()
    assert found.metrics["efficacy_success"]["n"] == 2
    assert found.metrics["paraphrase_success"]["n"] == 1
    assert "efficacy success" in str(found)


def case(fact: Fact, before: dict[str, float] | None, after: dict[str, float]) -> Case:
    return Case(fact, None if before is None else Measurement(values=before), Measurement(values=after))


def test_summary_by_hand() -> None:
    parts = ("efficacy_success", "paraphrase_success", "neighbourhood_success")
    cases = (
        case(EIFFEL, dict(zip(parts, (0.0, 0.0, 1.0), strict=True)), dict(zip(parts, (1.0, 0.5, 1.0), strict=True))),
        case(BEN, dict(zip(parts, (1.0, 0.5, 1.0), strict=True)), dict(zip(parts, (1.0, 0.0, 0.5), strict=True))),
        case(THOMAS, {"efficacy_success": 0.0}, {"efficacy_success": 0.0, "perplexity_drift": 0.25}),
    )
    found = Evaluation(cases).metrics
    assert found["efficacy_success"]["after"] == pytest.approx(2 / 3)
    assert found["efficacy_success"]["before"] == pytest.approx(1 / 3)
    assert found["efficacy_success"]["n"] == 3
    assert found["paraphrase_success"]["after"] == pytest.approx(0.25)
    # of the two facts that have all three: means 1, 1/4, 3/4 after and 1/2, 1/4, 1 before
    assert found["score"]["after"] == pytest.approx(3 / (1 + 4 + 4 / 3))
    assert found["score"]["before"] == pytest.approx(3 / (2 + 4 + 1))
    assert found["score"]["n"] == 2
    assert found["perplexity_drift"] == {"before": None, "after": 0.25, "low": None, "high": None, "n": 1}
    low, high = found["efficacy_success"]["low"], found["efficacy_success"]["high"]
    assert low is not None
    assert high is not None
    assert 0 <= low <= 2 / 3 <= high <= 1


def test_one_case_without_before_leaves_no_before() -> None:
    cases = (
        case(EIFFEL, None, {"efficacy_success": 1.0}),
        case(BEN, {"efficacy_success": 0.0}, {"efficacy_success": 1.0}),
    )
    assert Evaluation(cases).metrics["efficacy_success"]["before"] is None


def test_what_the_unedited_model_cannot_read_is_not_in_before() -> None:
    unread = Measurement(values={"efficacy_success": 0.0}, error="too long: x")
    cases = (
        case(EIFFEL, {"efficacy_success": 1.0}, {"efficacy_success": 1.0}),
        Case(BEN, unread, unread, error=unread.error),
    )
    found = Evaluation(cases).metrics["efficacy_success"]
    assert (found["before"], found["after"], found["n"]) == (1.0, 0.5, 2)
    assert Evaluation(cases[1:]).metrics["efficacy_success"]["before"] is None


def test_case_survives_json() -> None:
    lm = build()
    before = measure(lm, [EIFFEL], SMALL)
    with random_update(lm, 0.35).applied(lm):
        (after,) = measure(lm, [EIFFEL], SMALL, before)
    whole = Case(EIFFEL, before[0], after, {"loss": 0.5, "steps": 3}, 1.5, "")
    line = json.dumps(whole.to_dict(), allow_nan=False)
    read = Case.from_dict(json.loads(line))
    assert read.fact == EIFFEL
    assert read.after.values == after.values
    assert read.before is not None
    assert read.before.values == before[0].values
    assert (read.edit, read.seconds, read.error) == ({"loss": 0.5, "steps": 3}, 1.5, "")
    assert json.dumps(read.to_dict()) == line
    assert Case.from_dict(whole.to_dict()).to_dict() == whole.to_dict()
    assert Evaluation((read,)).metrics == Evaluation((whole,)).metrics
    alone = Case.from_dict(json.loads(json.dumps(Case(ERASE, None, Measurement(), error="refused").to_dict())))
    assert alone.before is None
    assert alone.error == "refused"


def test_what_is_not_finite_is_left_out_of_files_and_means() -> None:
    values = {"efficacy_success": 0.0, "perplexity_drift": math.nan, "neighbourhood_kl": math.inf}
    wrecked = case(EIFFEL, None, values)
    assert wrecked.to_dict()["after"]["values"] == {"efficacy_success": 0.0}
    assert Evaluation((wrecked,)).metrics.keys() == {"efficacy_success"}


def test_a_wrecked_model_can_be_measured() -> None:
    lm = build()
    before = measure(lm, [EIFFEL], SMALL)
    lm.memory(1).weight.data[:] = torch.nan
    (after,) = measure(lm, [EIFFEL], SMALL, before)
    assert after.values["efficacy_success"] == after.values["neighbourhood_success"] == 0
    json.dumps(Case(EIFFEL, before[0], after).to_dict(), allow_nan=False)
    assert judged(EIFFEL, before[0], after).error.startswith(NOT_FINITE)


def test_no_numbers_are_noticed_where_no_value_shows_them() -> None:
    lm = build()
    fact = dataclasses.replace(EIFFEL, target_true=None, id="")
    settings = dataclasses.replace(SMALL, perplexity_windows=0, generate=False)
    lm.memory(1).weight.data[:] = torch.nan
    after = dataclasses.replace(measure(lm, [fact], settings)[0], values={"token_accuracy": 0.0})
    assert judged(fact, after, after).error.startswith(NOT_FINITE)


def test_only_some_kinds_of_prompts_can_be_measured() -> None:
    lm, settings = tiny.build("llama"), dataclasses.replace(SMALL, only=("prompt", "neighbourhood"))
    fact = Fact("Rome", "{} is in", "France", "Italy", paraphrases=("{} lies in",), neighbourhood=("Milan is in",))
    [some], [all_] = measure(lm, [fact], settings), measure(lm, [fact], SMALL)
    assert set(some.prompts) == {"prompt", "neighbourhood"}
    assert {"paraphrases", "neighbourhood_plus"} <= set(all_.prompts)
    shared = some.values.keys() & all_.values.keys()
    assert {key: some.values[key] for key in shared} == pytest.approx({key: all_.values[key] for key in shared})
    assert not [key for key in some.values if key.startswith("paraphrase")]
    with pytest.raises(SettingsError, match="only: 'paraphrase' is no kind of prompt; the kinds are prompt, para"):
        EvalSettings(only=("paraphrase",))
    with pytest.raises(SettingsError, match="only: questions are made of other kinds"):
        EvalSettings(only=("questions",), side_effects=True)
    with pytest.raises(SettingsError, match="only: negations is measured where side_effects=true"):
        EvalSettings(only=("prompt", "negations"))
