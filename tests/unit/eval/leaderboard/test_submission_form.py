import json
import re
from pathlib import Path
from typing import Any

import pytest
from readers_parts import changed

from eval.leaderboard import submission_schema
from eval.leaderboard.submission_form import SCHEMA, form_problems

ROOT = Path(__file__).resolve().parents[4]
PROMPT = {
    "prompt": "S is in",
    "log_probs_new": [-0.5, -1],
    "log_probs_true": [-2.0],
    "token_accuracy": 1,
    "answer": "x",
}
STATE = {"prompts": {"prompt": [PROMPT], "neighbourhood": []}, "values": {"log_perplexity": 3}}
GOOD: dict[str, Any] = {
    "schema": SCHEMA,
    "editor": "theirs",
    "model": "tiny",
    "data": "facts",
    "mode": "single",
    "cases": [
        {"id": "a", "before": STATE, "after": STATE, "seconds": 2, "error": "", "fact": {"subject": "S"}},
        {"id": "b", "before": STATE, "after": {"prompts": {}, "values": None}, "seconds": None, "edit": {"x": 1}},
    ],
}


def good(path: str, value: Any) -> dict[str, Any]:
    return changed(json.loads(json.dumps(GOOD)), path, value)  # whose parts are all its own


# What is wrong, where, and how it is said. All but those without a schema's means are wrong by the JSON schema, too.
WRONG = [
    ("schema", "corrigenda-submission/0", "'schema' must be 'corrigenda-submission/1', got 'corrigenda-submission/0'"),
    ("schema", "<absent>", "'schema' is missing"),
    ("editor", "", "'editor' must be a text that is not empty, got ''"),
    ("data", 3, "'data' must be a text that is not empty, got 3"),
    ("mode", "both", "'mode' must be one of single, batch, sequential, got 'both'"),
    ("seed", True, "'seed' must be a whole number, got True"),
    ("seed", None, "'seed' must be a whole number, got None"),
    ("cases", [], "'cases' must be a list that is not empty, got []"),
    ("cases", {}, "'cases' must be a list that is not empty, got {}"),
    ("config", [1], "'config' must be an object, got [1]"),
    ("peak_memory_mb", 0, "'peak_memory_mb' must be a positive number, got 0"),
    ("url", 3, "'url' must be a text, got 3"),
    ("cases.1", 7, "cases[1]: must be an object with an 'id'"),
    ("cases.1.id", "<absent>", "cases[1]: must be an object with an 'id'"),
    ("cases.0.before", "<absent>", "cases[0]: 'before' is missing"),
    ("cases.0.before.prompts", "<absent>", "cases[0]: before.prompts is missing"),
    ("cases.0.after", [], "cases[0]: 'after' must be an object with 'prompts', got []"),
    ("cases.0.after.values", [1], "cases[0]: after.values must be an object, got [1]"),
    ("cases.0.after.values.score", "x", "cases[0]: after.values.score must be a number, got 'x'"),
    ("cases.0.after.prompts.prompt", 1, "cases[0]: after.prompts.prompt must be a list of objects, got 1"),
    ("cases.0.after.prompts.prompt.0", 1, "cases[0]: after.prompts.prompt[0]: must be an object, got 1"),
    (
        "cases.0.after.prompts.prompt.0.log_probs_new",
        ["x"],
        "cases[0]: after.prompts.prompt[0].log_probs_new: must be a list of numbers, got ['x']",
    ),
    (
        "cases.0.after.prompts.prompt.0.token_accuracy",
        1.5,
        "cases[0]: after.prompts.prompt[0].token_accuracy: must be a share of the tokens, from 0 to 1, got 1.5",
    ),
    (
        "cases.0.after.prompts.prompt.0.answer",
        None,
        "cases[0]: after.prompts.prompt[0].answer: must be a text, got None",
    ),
    (
        "cases.0.after.prompts.prompt.0.same_tokens",
        "x",
        "cases[0]: after.prompts.prompt[0].same_tokens: must be a whole number that is not negative, got 'x'",
    ),
    ("cases.0.seconds", -1, "cases[0]: 'seconds' must be a number that is not negative, got -1"),
    ("cases.0.fact", "x", "cases[0]: 'fact' must be an object, got 'x'"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG)
def test_what_is_wrong_is_said_with_its_place_and_by_the_schema(path: str, value: Any, said: str) -> None:
    assert [problem.text() for problem in form_problems(good(path, value))] == [said]
    jsonschema = pytest.importorskip("jsonschema")
    assert not jsonschema.Draft202012Validator(submission_schema()).is_valid(good(path, value))


def test_a_good_one() -> None:
    assert form_problems(GOOD) == []
    assert form_problems(GOOD | {"seed": 3, "notes": ["any", 1], "config": {"layer": 4}, "more": None}) == []
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(json.dumps(submission_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(GOOD)


def test_the_documented_example_fits_the_schema() -> None:
    text = (ROOT / "docs" / "submissions.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert form_problems(json.loads(block)) == []
    pytest.importorskip("jsonschema").Draft202012Validator(submission_schema()).validate(json.loads(block))


def test_all_problems_are_said_at_once() -> None:
    wrong = good("cases.0.seconds", -1) | {"editor": "", "seed": "x"}
    wrong["cases"][1]["id"] = 3
    assert len(form_problems(wrong)) == 4


def test_a_probability_above_one_and_a_null_without_an_error() -> None:
    place = "cases.0.after.prompts.prompt.0.log_probs_true"
    [above] = form_problems(good(place, [0.3]))
    assert above.text("case 'a'").endswith("log_probs_true: impossible probability: log p = 0.3 is above 0")
    [null] = form_problems(good(place, [None]))
    assert "log_probs_true: must be a list of numbers, got [None]; null stands for NaN" in null.text()
    assert null.place == ("cases", 0, "after", "prompts", "prompt", 0, "log_probs_true")
    explained = good(place, [None])
    explained["cases"][0]["error"] = "diverged"
    assert form_problems(explained) == []
