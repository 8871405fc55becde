import json
from pathlib import Path
from typing import Any

import program
import pytest
import server_stub
import tiny

KEY = "sk-nobody-may-see-this-0123456789"
SUBJECTS = ("Eiffel", "Thomas", "tower", "river", "red", "blue", "seven", "Ben", "black", "green", "west", "north")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    lm = tiny.build("llama")
    lm.model.config.max_position_embeddings = 512
    lm.save_pretrained(tmp_path / "model")
    with (tmp_path / "facts.jsonl").open("w") as file:
        for number, subject in enumerate(SUBJECTS):
            fact = {"id": f"fact-{number}", "subject": subject, "prompt": "the city of {} is", "target_new": "Rome"}
            file.write(json.dumps(fact) + "\n")
    return tmp_path


def arguments(home: Path, stub: Any, **judge: Any) -> list[str]:
    given = {"url": stub.url, "model": "m", "wait": 0.01, "retries": 1} | judge
    return [
        *("model=own", f"model.name={home / 'model'}", "model.device=cpu", "data=facts", "editor=in_context"),
        *(f"data.path={home / 'facts.jsonl'}", "eval=real_use", "eval.perplexity_windows=0", "eval.max_new_tokens=4"),
        *("eval.fluency_tokens=4", "eval.real_use.max_new_tokens=5", "seed=0"),
        *(f"eval.real_use.judge.{name}={value}" for name, value in given.items()),
    ]


def test_a_run_goes_on_when_the_judge_is_back(home: Path, stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    stub.answers = [(200, server_stub.completion("wrong"))]
    stub.refuses = lambda prompt: "north" in prompt  # the last fact: ten are measured together, and edited, before
    given = arguments(home, stub, key="A_KEY", parallel=1)
    said = program.call(home, *given, succeeds=False)
    assert (
        f"the judge m at {stub.url}: it answered 503 'no model is loaded for Bearer (the key)', after 2 tries" in said
    )
    assert "see that it runs, and give the same command again" in said
    assert "Traceback" not in said
    [path] = home.rglob("cases.jsonl")
    assert len(path.read_text(encoding="utf-8").splitlines()) == 10
    before = [json.dumps(request["body"]) for request in stub.requests]
    stub.refuses = lambda prompt: False
    stub.requests = []
    said += program.call(home, *given)
    assert "going on there" in said
    again = [json.dumps(request["body"]) for request in stub.requests]
    assert set(before) & set(again) == {before[-1]}  # nothing else is asked twice
    assert {request["key"] for request in stub.requests} == {f"Bearer {KEY}"}
    cases = [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]
    assert [case["error"] for case in cases] == [""] * 12
    verdicts = {one["verdict"] for case in cases for one in case["after"]["prompts"]["questions"]}
    assert verdicts == {"wrong"}
    metrics = json.loads((path.parent / "summary.json").read_text(encoding="utf-8"))["metrics"]
    assert [metrics["real_use_judged"][part] for part in ("before", "after", "n")] == [0.0, 0.0, 12]
    # The key is in no file, the log among them, and in nothing that was said.
    written = [file for file in home.rglob("*") if file.is_file()]
    assert any(file.suffix == ".log" and file.stat().st_size for file in written)
    assert [file for file in written if KEY.encode() in file.read_bytes()] == []
    assert KEY not in said
    assert "HTTP Request" not in said  # a line for each request


def test_what_cannot_be_is_said_before_anything_is_done(home: Path, stub: Any) -> None:
    """All else that cannot be is refused by the class: tests/unit/eval/judge/test_judge.py."""
    said = program.call(home, *arguments(home, stub, model="null"), succeeds=False)
    assert "Judge: model=None must name the model" in said
    assert "Traceback" not in said
    assert stub.requests == []
