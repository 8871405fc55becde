import json
from dataclasses import replace

import tiny
from edits_parts import random_update

from corrigenda import Fact, LanguageModel
from corrigenda.data.side_effects import fact_checks
from corrigenda.facts import Probe
from eval import Case, EvalSettings, Evaluation, evaluate
from eval.leaderboard.recompute import recomputed

SHORT = {"max_new_tokens": 5, "preservation_tokens": 4, "fluency_tokens": 12}
SMALL = EvalSettings(**SHORT, perplexity_windows=3, perplexity_window=16, side_effects=True)
FACTS = [
    Fact(
        subject,
        "the city of {} is",
        "the capital",
        old,
        paraphrases=(f"{subject} stands in",),
        neighbourhood=("the city of nine is", "the city of ten is"),
        locality=(Probe("one two", "three four", (), "count"), Probe("one two", "three", (), "count")),
        portability=(Probe(f"the {subject} plays", "the piano", (), "hops"), Probe("the language is", "English")),
        generation=(f"the {subject} is",),
    )
    for subject, old in (("Thomas", "Berlin"), ("tower", None))
]


def test_what_was_measured_follows_from_the_records() -> None:
    lm = tiny.build("llama", scale=8.0)
    with random_update(lm, 1.0).applied(lm):
        found = evaluate(lm, FACTS, SMALL)
    for case in found.cases:
        record = json.loads(json.dumps(case.to_dict()))
        again = recomputed(case.fact, record)
        assert case.before is not None
        assert again.before is not None
        assert list(again.before.values.items()) == list(case.before.values.items())
        assert list(again.after.values.items()) == list(case.after.values.items())
        assert {
            "preservation_count",
            "portability_hops_token_accuracy",
            "perplexity_drift",
        } <= again.after.values.keys()
        assert json.dumps(again.to_dict()["after"]) == json.dumps(record["after"])
        expected = [check["expected"] for check in record["after"]["prompts"]["fact_checks"]]
        assert expected == [check.expected for check in fact_checks(case.fact)] != []
    summary = found.metrics
    assert (summary["negation_rate"]["n"], summary["negation_gain"]["n"]) == (1, 2)
    assert summary["fact_check_success"]["before"] is not None
    assert summary["same_subject_kl"]["before"] is None  # it compares with before


def test_what_a_record_claims_of_itself_is_not_believed() -> None:
    state = {
        "prompts": {
            "prompt": [{"prompt": "x", "log_probs_new": [-2.0], "p_new": 0.9, "p_true": 0.1, "strict": True}],
            "portability": [{"prompt": "y", "token_accuracy": 1.0, "group": "made_up"}],
        }
    }
    found: Case = recomputed(FACTS[0], {"before": state, "after": state})
    assert found.after.values == {"portability_token_accuracy": 1.0, "portability_hops_token_accuracy": 1.0}


def test_a_fact_that_the_model_cannot_read_counts_as_failed_here_too(lm: LanguageModel) -> None:
    long = replace(FACTS[0], paraphrases=("one " * 99 + "is",))
    with random_update(lm, 1.0).applied(lm):
        found = evaluate(lm, [long, FACTS[1]], SMALL)
    assert found.cases[0].error.startswith("too long")
    records = [json.loads(json.dumps(case.to_dict())) for case in found.cases]
    again = Evaluation(tuple(map(recomputed, [long, FACTS[1]], records))).metrics
    assert again["token_accuracy"] == found.metrics["token_accuracy"]
    assert (again["token_accuracy"]["n"], again["efficacy_success"]["after"]) == (2, 0.0)
    records[0]["after"]["values"] = {"efficacy_success": 1.0, "neighbourhood_success": 1.0}  # as it may be claimed
    assert recomputed(long, records[0]).after.values == {"efficacy_success": 0.0}
