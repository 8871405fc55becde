import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_runs
import pytest
from made_runs import made_fact
from readers_parts import changed

from corrigenda import Fact
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.store import Store
from eval.leaderboard import add_submission, leaderboard
from eval.leaderboard.recompute import recomputed
from eval.leaderboard.submissions import SubmissionError, validate

OF_THE_ANSWER = ("strict", "lenient", "begins_true", "says_true", "says_new", "content_word")


@pytest.fixture
def store(tmp_path: Path, make_run: Any) -> Store:
    """A store with one run on facts 0 to 39."""
    make_run("rome", [True] * 40)
    return Store(tmp_path / "outputs")


def write(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "submission.json"
    path.write_text(json.dumps(value))
    return path


def test_a_good_submission_stands_in_the_table(tmp_path: Path, store: Store, submission: Any) -> None:
    theirs = submission(works=[True] * 30 + [False] * 10)
    theirs["claimed"] = {"efficacy_success": 0.75}
    folder = add_submission(write(tmp_path, theirs), store)
    [board] = leaderboard(store.runs()).boards
    rows = {row.label: row for row in board.rows}
    assert rows["theirs"].entry is not None
    assert rows["theirs"].entry.submitted
    assert rows["theirs"].cells["efficacy_success"].value == pytest.approx(0.75)
    assert rows["theirs"].compared
    assert any({test.left, test.right} == {"theirs", "rome"} for test in board.tests)
    assert add_submission(write(tmp_path, theirs), store) == folder  # the same one again changes nothing
    assert len(store.runs()) == 2


def test_values_are_worked_out_from_the_records(tmp_path: Path, store: Store, submission: Any) -> None:
    theirs = submission()
    bare = json.loads(json.dumps(theirs))
    for case in bare["cases"]:
        del case["fact"], case["verb"], case["edit"]
        for state in ("before", "after"):
            case[state]["values"] = {"log_perplexity": case[state]["values"]["log_perplexity"]}
            for records in case[state]["prompts"].values():
                for record in records:
                    for name in {"p_new", "p_true", "entropy", *OF_THE_ANSWER}:
                        record.pop(name, None)
    full, _ = validate(theirs, store.runs())
    assert validate(bare, store.runs())[0] == full
    for case, found in zip(theirs["cases"], full, strict=True):
        values = found["after"]["values"]
        assert {key: values[key] for key in case["after"]["values"]} == pytest.approx(case["after"]["values"])


def lose_numbers(case: dict[str, Any]) -> None:
    """As the record of an edit after which the model gives NaN, which JSON has no word for."""
    after = case["after"]
    for kind in ("prompt", "paraphrases", "neighbourhood"):
        for record in after["prompts"][kind]:
            record |= {name: [None] for name in ("log_probs_new", "log_probs_true")}
            record |= {"p_new": None, "p_true": None, "token_accuracy": 0.0}
            record |= {"kl": None, "preserved": False} if kind == "neighbourhood" else {"answer": "!!!"}
            for name in OF_THE_ANSWER:
                record.pop(name, None)
    after["values"] = {"log_perplexity": None}


def test_a_divergence_cannot_be_left_out_of_the_mean(store: Store, submission: Any) -> None:
    theirs = submission()
    theirs["cases"][0]["after"]["prompts"]["neighbourhood"][0]["kl"] = None
    with pytest.raises(SubmissionError, match=r"neighbourhood\[0\]\.kl: must be a number, got None"):
        validate(theirs, store.runs())


@pytest.mark.parametrize("why", ["not finite: the edited model gives no numbers", "diverged"])
def test_an_edit_that_left_no_numbers_counts_as_failed(tmp_path: Path, store: Store, submission: Any, why: str) -> None:
    theirs = submission()
    for case in theirs["cases"][:10]:
        lose_numbers(case)
        case["error"] = why
    folder = add_submission(write(tmp_path, theirs), store)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["n_failed"] == 10
    success = summary["metrics"]["efficacy_success"]
    assert (success["after"], success["n"]) == (pytest.approx(0.75), 40)
    records = {record["id"]: record for record in RunFolder(folder).cases()}
    lost = records["fact-0"]
    assert lost["error"].startswith("not finite")
    assert why in lost["error"]
    assert lost["after"]["prompts"]["prompt"][0]["log_probs_new"] == [None]
    assert "efficacy_magnitude" not in lost["after"]["values"]
    assert "log_perplexity" not in lost["after"]["values"]
    assert records["fact-10"]["error"] == ""
    [board] = leaderboard(store.runs()).boards
    row = {row.label: row for row in board.rows}["theirs"]
    assert row.n_failed == 10
    assert row.cells["efficacy_success"].value == pytest.approx(0.75)


def test_held_out_texts_without_numbers_are_no_numbers(store: Store, submission: Any) -> None:
    """Else the drift of the other edits would be tested, and the edit that wrecked the model left out of it."""
    theirs = submission()
    case = theirs["cases"][0] | {"error": "diverged"}
    for state, log_probs in (("before", [-6.0, -6.0]), ("after", [None, -6.0])):
        case[state]["held_out"] = {"windows": [0, 1], "log_probs": log_probs, "tokens": [2, 2]}
    case["after"]["values"] = {"log_perplexity": None}
    theirs["cases"][0] = case
    found, _ = validate(theirs, store.runs())
    assert found[0]["error"] == "not finite: diverged"
    assert "perplexity_drift" not in found[0]["after"]["values"]


def test_no_numbers_where_no_edit_failed_are_refused(store: Store, submission: Any) -> None:
    theirs = submission()
    theirs["cases"][0]["error"] = "diverged"
    theirs["cases"][0]["before"]["prompts"]["prompt"][0]["log_probs_true"] = [None]
    lose_numbers(theirs["cases"][1])
    with pytest.raises(SubmissionError) as caught:
        validate(theirs, store.runs())
    nulls = [problem for problem in caught.value.problems if "null stands for NaN" in problem]
    assert nulls[0].startswith("case 'fact-0': before.prompts.prompt[0].log_probs_true: must be a list of numbers")
    assert len(nulls) == 1 + 2 * 4
    assert all(problem.startswith("case 'fact-1': after.prompts.") for problem in nulls[1:])


OUT, AFTER, BEFORE = "<absent>", "cases.0.after.prompts", "cases.0.before.prompts"
PROMPT, NEAR = f"{AFTER}.prompt.0", f"{AFTER}.neighbourhood.0"

WINDOWS = {"windows": [0], "log_probs": [-3.0], "tokens": [2]}

# By place what is otherwise ("<absent>": gone), and what is said; the form alone is in test_submission_form.py.
SPOILT: list[tuple[dict[str, Any], str]] = [
    ({"cases.3": OUT, "cases.7": OUT}, r"2 of the 40 cases are missing: 'fact-3', 'fact-8'"),
    ({"cases.1.id": "fact-0"}, r"case 'fact-0': is there twice"),
    ({"cases.0.id": "fact-x"}, r"case 'fact-x': unknown fact.*\n.*1 of the 40 cases are missing: 'fact-0'"),
    ({f"{PROMPT}.prompt": "S 0 lives in"}, r"after\.prompts\.prompt: changed prompt: \[0\] is 'S 0 lives in'"),
    ({f"{AFTER}.neighbourhood.1": OUT}, r"after\.prompts\.neighbourhood: 1 prompts in the place of 2"),
    ({f"{AFTER}.neighbourhood": OUT}, r"after\.prompts\.neighbourhood: missing; it must be a list of 2 objects"),
    ({"cases.0.fact.target_new": "Lyon"}, r"changed fact: target_new differ"),
    (
        {
            **{f"{PROMPT}.log_probs_new": [math.log(0.8)], f"{PROMPT}.log_probs_true": [math.log(0.7)]},
            **{f"{PROMPT}.p_new": 0.8, f"{PROMPT}.p_true": 0.7},
        },
        r"impossible probabilities: the joint P\(new\) \+ P\(true\) = 1\.5000 is above 1",
    ),
    ({f"{PROMPT}.p_new": 0.99}, r"p_new: is 0\.99, but the log-probabilities give 0\.800000"),
    ({f"{PROMPT}.token_accuracy": 0.5}, r"token_accuracy: must be a share of 1 tokens, got 0\.5"),
    ({f"{PROMPT}.token_accuracy": 0.0}, r"token_accuracy: is 0\.0, but 1 of 1 tokens are more likely than one half"),
    (
        {"cases.0.after.values.preservation": 0.5},
        r"after\.values\.preservation: is 0\.5, but the records give 1\.000000",
    ),
    (
        {"cases.0.after.values.portability_token_accuracy": 1.0},
        r"after\.values\.portability_token_accuracy: does not follow from the records",
    ),
    ({f"{PROMPT}.answer": " Paris"}, r"strict: is True, but the answer ' Paris' gives False"),
    ({f"{PROMPT}.answer": OUT}, r"after\.prompts\.prompt\[0\]\.answer: missing"),
    ({f"{NEAR}.kl": -0.5}, r"kl: must be a number that is not negative, got -0\.5"),
    ({f"{AFTER}.generation.0.entropy": 6.2}, r"entropy: the text gives"),
    (
        {f"{BEFORE}.prompt.0.log_probs_new": [math.log(0.3)], f"{BEFORE}.prompt.0.p_new": 0.3},
        r"before\.prompts\.prompt\[0\]: P\(new\) is 0\.300, but the store's runs of this model have 0\.100",
    ),
    (
        {"cases.0.before.values.log_perplexity": 9.0},
        r"before: log perplexity is 9\.000, but the store's runs of this model have 3\.000",
    ),
    ({"cases.0.before.values.log_perplexity": OUT}, r"before\.values\.log_perplexity: missing"),
    ({f"{BEFORE}.neighbourhood.0.log_probs_true": [-0.9]}, r"before\.prompts\.neighbourhood\[0\]: P\(true\) is 0\.407"),
    (
        {
            **{f"{PROMPT}.log_probs_new": [-3.0], f"{PROMPT}.log_probs_true": [-0.8]},
            **{f"{PROMPT}.token_accuracy": 1.0, f"{PROMPT}.p_new": OUT, f"{PROMPT}.p_true": OUT},
        },
        r"token_accuracy: is 1\.0, but the true object's first token is more likely",
    ),
    ({f"{AFTER}.portability": [{"prompt": "x"}]}, r"after\.prompts\.portability: the data set has no such prompts"),
    (
        {"config": {f"layer{number}": number for number in range(5000)}},
        r"'config' and what is said beside it have [\d,]+ characters; shorten them",
    ),
    (
        {"claimed": {"score": 0.97, "efficacy_success": 0.93}},
        r"claimed\.score: is 0\.97, but the records give 1\.0000\n.*claimed\.efficacy_success",
    ),
    (
        {f"{NEAR}.same_tokens": 3, f"{AFTER}.neighbourhood.1.same_tokens": 10},
        r"neighbourhood\[0\]\.preserved: is True, but 3 of 10 tokens are the same",
    ),
    (
        {**{f"{NEAR}.same_tokens": 10, f"{AFTER}.neighbourhood.1.same_tokens": 10}, f"{NEAR}.preserved": False},
        r"neighbourhood\[0\]\.preserved: is False, but 10 of 10 tokens are the same",
    ),
    ({"cases": []}, r"'cases' must be a list that is not empty"),
    ({"cases.0.after.held_out": {"windows": [0]}}, r"after\.held_out must be lists of one length, not empty: windows"),
    ({"cases.0.after.held_out": WINDOWS}, r"before\.held_out and after\.held_out must be of the same windows"),
]


@pytest.mark.parametrize(("changes", "problem"), SPOILT)
def test_a_bad_submission_is_refused(
    tmp_path: Path, store: Store, submission: Any, changes: dict[str, Any], problem: str
) -> None:
    theirs = submission()
    for place, value in changes.items():
        theirs = changed(theirs, place, value)
    with pytest.raises(SubmissionError, match=problem):
        add_submission(write(tmp_path, theirs), store)
    assert len(store.runs()) == 1  # nothing of it was stored


@pytest.mark.parametrize("mode", ["batch", "sequential"])
def test_a_request_that_a_later_one_replaces_is_in_no_average(
    tmp_path: Path, make_run: Any, submission: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of 40 asks for Oslo, in vain, and the last asks the same for Rome."""
    of_both = {0: {"target_new": "Oslo"}, 39: {"id": "fact-39"}}
    monkeypatch.setattr(
        made_runs,
        "made_fact",
        lambda n: replace(made_fact(n if n < 39 else 0), **of_both.get(n, {})),  # type: ignore[arg-type]
    )
    make_run("rome", [True] * 40, mode=mode)
    theirs = submission(works=[False] + [True] * 39) | {"mode": mode, "claimed": {"efficacy_success": 1.0}}
    folder = add_submission(write(tmp_path, theirs), Store(tmp_path / "outputs"))
    assert json.loads((folder / "summary.json").read_text())["metrics"]["efficacy_success"]["n"] == 39
    [board] = leaderboard(Store(tmp_path / "outputs").runs()).boards
    row = {row.label: row for row in board.rows}["theirs"]
    assert (row.cells["efficacy_success"].value, row.cells["efficacy_success"].n) == (1.0, 39)


def test_a_submission_that_was_cut_short_is_completed(tmp_path: Path, make_run: Any, submission: Any) -> None:
    make_run("rome", [True] * 40, mode="sequential")
    store = Store(tmp_path / "outputs")
    theirs = submission() | {"mode": "sequential"}
    theirs["cases"].reverse()
    path = write(tmp_path, theirs)
    folder = add_submission(path, store)
    whole = [record["id"] for record in RunFolder(folder).cases("retention")]
    assert whole == [f"fact-{number}" for number in range(40)]
    (folder / "summary.json").unlink()
    records = [json.dumps(record) for record in RunFolder(folder).cases()]
    (folder / "cases.jsonl").write_text("".join(f"{record}\n" for record in records))
    (folder / "retention.jsonl").write_text("".join(f"{record}\n" for record in records[:7]) + records[7][:20])
    assert add_submission(path, store) == folder
    for of in ("cases", "retention"):
        assert [record["id"] for record in RunFolder(folder).cases(of)] == whole


def test_all_problems_are_said_but_not_without_end(store: Store, submission: Any) -> None:
    theirs = submission()
    for case in theirs["cases"]:
        case["after"]["prompts"]["prompt"][0]["log_probs_new"] = [1.0]
    with pytest.raises(SubmissionError, match=r"\.\.\. and 20 more") as caught:
        validate(theirs, store.runs())
    assert len(caught.value.problems) == 40


def test_means_of_two_long_objects_may_come_to_more_than_one(store: Store, submission: Any) -> None:
    """P is of a mean: twice sqrt(0.495) = 0.70 is possible, for the joint probabilities come to 0.99."""
    theirs = submission()
    prompt = theirs["cases"][0]["after"]["prompts"]["prompt"][0]
    prompt |= {"log_probs_new": [math.log(0.99), math.log(0.5)], "log_probs_true": [math.log(0.9), math.log(0.55)]}
    del prompt["p_new"], prompt["p_true"], theirs["cases"][0]["after"]["values"]
    with pytest.raises(SubmissionError) as caught:
        validate(theirs, store.runs())
    assert "impossible" not in str(caught.value)


def test_runs_by_other_definitions_are_no_measure(tmp_path: Path, store: Store, submission: Any) -> None:
    [run] = store.runs()
    summary = json.loads((run.path / "summary.json").read_text())
    del summary["definitions"]  # as the first versions wrote it
    (run.path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(SubmissionError, match="by this version's definitions of the metrics"):
        validate(submission(), store.runs())


def test_what_is_no_submission(tmp_path: Path, store: Store, submission: Any) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        add_submission(tmp_path / "nothing.json", store)
    (tmp_path / "a.json").write_text('{"schema": ')
    with pytest.raises(SubmissionError, match="not JSON"):
        add_submission(tmp_path / "a.json", store)
    (tmp_path / "a.json").write_text('{"schema": NaN}')
    with pytest.raises(SubmissionError, match=r"schema is no finite number \(nan\)"):
        add_submission(tmp_path / "a.json", store)
    with pytest.raises(SubmissionError, match="must be an object, got list"):
        validate([], store.runs())
    with pytest.raises(SubmissionError, match=r"no finished run of model 'tiny' on 'facts' in mode 'batch'"):
        validate(submission() | {"mode": "batch"}, store.runs())


def test_the_documented_example(store: Store) -> None:
    text = (Path(__file__).parents[4] / "docs" / "submissions.md").read_text()
    [block] = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    example = json.loads(block)
    with pytest.raises(SubmissionError) as caught:
        validate(example, store.runs())
    [problem] = caught.value.problems
    assert "the store has no finished run of model 'smollm2-135m' on 'counterfact'" in problem
    [case] = example["cases"]
    fact = Fact(
        case["fact"]["subject"], case["fact"]["prompt"], case["fact"]["target_new"], case["fact"]["target_true"]
    )
    assert recomputed(fact, case).after.values["efficacy_success"] == 1
