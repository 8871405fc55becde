import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corrigenda import serving
from eval.judge import Judge, JudgeError

GOOD = (200, json.dumps({"choices": [{"message": {"content": "right"}}]}))
KEY = "sk-a-key-that-nobody-may-see"


def judge(stub: Any, folder: Path, **more: Any) -> Judge:
    return Judge(**{"url": stub.url, "model": "m", "wait": 0.01, "cache": str(folder)} | more)


def test_what_is_sent(stub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", f"{KEY}\n")
    assert judge(stub, tmp_path, key="THE_KEY", seed=3).replies(["is it?"]) == ["right"]
    [request] = stub.requests
    assert request["path"] == "/v1/chat/completions"
    assert request["key"] == f"Bearer {KEY}"
    assert request["body"] == {
        "model": "m",
        "temperature": 0.0,
        "seed": 3,
        "max_tokens": 16,
        "messages": [{"role": "user", "content": "is it?"}],
    }


def test_what_is_null_is_not_sent(stub: Any, tmp_path: Path) -> None:
    judge(stub, tmp_path, seed=None, temperature=None, url=f"{stub.url}/chat/completions").replies(["is it?"])
    [request] = stub.requests
    assert request["path"] == "/v1/chat/completions"
    assert request["key"] is None
    assert set(request["body"]) == {"model", "max_tokens", "messages"}


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(stub: Any, tmp_path: Path, status: int) -> None:
    stub.answers = [(status, "busy"), (status, "busy"), GOOD]
    assert judge(stub, tmp_path).replies(["is it?"]) == ["right"]
    assert len(stub.requests) == 3


@pytest.mark.parametrize(
    ("answers", "asked", "waited"),
    [
        ([(429, ""), GOOD], {"retry-after": "3"}, [3.0]),  # as long as the server asks
        ([(500, ""), (500, ""), (500, ""), GOOD], {}, [0.5, 1.0, 2.0]),  # twice as long each time
    ],
)
def test_waits(
    stub: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[tuple[int, str]],
    asked: dict[str, str],
    waited: list[float],
) -> None:
    taken: list[float | None] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            taken.append(timeout)
            return self.is_set()

    monkeypatch.setattr(serving, "threading", SimpleNamespace(Event=Event, Lock=threading.Lock))
    stub.answers, stub.headers = answers, asked
    judge(stub, tmp_path, wait=0.5).replies(["is it?"])
    assert taken == waited


def test_a_server_that_stays_in_trouble(stub: Any, tmp_path: Path) -> None:
    stub.answers = [(500, "out of\nmemory")]
    with pytest.raises(JudgeError) as caught:
        judge(stub, tmp_path, retries=2).replies(["is it?"])
    message = str(caught.value)
    assert message.startswith(f"the judge m at {stub.url}: it answered 500 'out of memory', after 3 tries; ")
    assert "give the same command again: what was answered is kept" in message
    assert "\n" not in message
    assert len(stub.requests) == 3


@pytest.mark.parametrize(
    "body",
    [
        *("<html>hello</html>", "[]", "null", "", "{}", '{"choices": []}', '{"choices": [{"text": "right"}]}'),
        *('{"choices": [{"message": {"content": ["right"]}}]}', '{"choices": [{"message": "right"}]}'),
    ],
)
def test_replies_that_are_none(stub: Any, tmp_path: Path, body: str) -> None:
    stub.answers = [(200, body)]
    with pytest.raises(JudgeError) as caught:
        judge(stub, tmp_path).replies(["is it?"])
    assert str(caught.value) == (
        f"the judge m at {stub.url}: its reply is no chat completion: 200 {body!r}; see judge.url"
    )
    assert len(stub.requests) == 1  # asking again would not help
    assert not list(tmp_path.rglob("*.json"))


def test_a_judge_that_only_thought(stub: Any, tmp_path: Path) -> None:
    stub.answers = [(200, json.dumps({"choices": [{"message": {"content": None}}]}))]
    assert judge(stub, tmp_path).replies(["is it?"]) == [""]


def test_several_at_once_in_their_order(stub: Any, tmp_path: Path) -> None:
    stub.reply, stub.seconds = (lambda prompt: f"about {prompt}"), 0.05
    prompts = [f"number {number}" for number in range(12)]
    found = judge(stub, tmp_path, parallel=3).replies([*prompts, prompts[0]])
    assert found == [f"about {prompt}" for prompt in [*prompts, prompts[0]]]
    assert stub.most_at_once == 3
    assert len(stub.requests) == 12  # the same question once


def test_what_came_is_kept(stub: Any, tmp_path: Path) -> None:
    stub.answers = [GOOD, GOOD, (500, "")]
    asked = judge(stub, tmp_path, parallel=1, retries=0)
    with pytest.raises(JudgeError):
        asked.replies(["one", "two", "three", "four"])
    stub.answers, stub.requests = [GOOD], []
    assert asked.replies(["one", "two", "three", "four"]) == ["right"] * 4
    assert [request["body"]["messages"][0]["content"] for request in stub.requests] == ["three", "four"]


def test_after_an_error_nobody_goes_on_trying(stub: Any, tmp_path: Path) -> None:
    stub.answers, stub.refuses = [(404, "")], lambda prompt: "busy" in prompt
    with pytest.raises(JudgeError, match="404"):
        judge(stub, tmp_path, wait=20.0, parallel=3).replies(["lost", "busy", "busy too", "never asked"])
    assert len(stub.requests) <= 4
