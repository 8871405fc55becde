import json
import socket
import threading
import time
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any

import pytest
import server_stub

from corrigenda.errors import SettingsError
from corrigenda.serving import _LONGEST_REPLY, Server, ServerError, _asked_pause, key_in, require_address

KEY = "sk-a-key-that-nobody-may-see"


def ask(stub: Any, prompt: str = "one", **settings: Any) -> str:
    """The answer to one prompt."""
    found: dict[str, str] = {}
    server = Server(**{"url": stub and stub.url, "wait": 0.01, "retries": 1} | settings)
    server.ask({prompt: {"prompt": prompt, "max_tokens": 3}}, found.__setitem__, "Asking", bar=False)
    return found[prompt]


def failure(stub: Any, **settings: Any) -> str:
    with pytest.raises(ServerError) as caught:
        ask(stub, **settings)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"the server at {stub.url}: ")
    return str(caught.value)


def test_what_is_sent(stub: Any) -> None:
    stub.reply = lambda prompt: f" about {prompt}"
    for url in (stub.url, f"{stub.url}/", f"{stub.url}/completions", f"{stub.url}/chat/completions"):
        assert ask(stub, url=url, sends={"model": "m", "temperature": 0}, key=KEY) == " about one"
        request = stub.requests.pop()
        assert (request["path"], request["key"]) == ("/v1/completions", f"Bearer {KEY}")
        assert request["body"] == {"model": "m", "temperature": 0, "prompt": "one", "max_tokens": 3}
    assert KEY not in repr(Server(stub.url, key=KEY))


def test_nobody_is_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ServerError, match=f"the server at {url}: it cannot be reached .*, after one try; see that it"):
        ask(None, url=url, retries=0)


def test_a_reply_that_never_ends_is_given_up(stub: Any) -> None:
    pieces, written = 200, []

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        """A reply that comes piece by piece, each in time."""
        handler.send_response(200)
        handler.end_headers()
        for piece in range(pieces):
            handler.wfile.write(b" ")
            written.append(piece)
            time.sleep(0.02)

    stub.instead = trickle
    assert "there was no answer within 0.2 s (timeout), after 2 tries" in failure(stub, timeout=0.2)
    assert len(written) < pieces


def flood(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 2**16)


def test_a_reply_without_measure(stub: Any) -> None:
    stub.instead = flood
    assert f"its reply has more than {_LONGEST_REPLY} bytes; see url" in failure(stub)
    assert len(stub.requests) == 1


def cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')


def test_a_reply_that_breaks_off(stub: Any) -> None:
    stub.instead = cut
    assert "its reply broke off (" in failure(stub)
    assert len(stub.requests) == 2  # another try


@pytest.mark.parametrize(
    "body",
    [
        'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n',  # a stream, which was not asked for
        *("<html>", "", "[]", "null", '{"error": "no"}', '{"choices": []}', '{"choices": [{"text": null}]}'),
        *('{"choices": [{"text": 1}]}', '{"choices": [{"message": {"content": "right"}}]}', "[" * 100_000),
    ],
)
def test_replies_that_are_none(stub: Any, body: str) -> None:
    stub.answers = [(200, body)]
    said = failure(stub)
    assert f"the server at {stub.url}: its reply is no completion: 200 " in said
    assert said.endswith("; see url")
    assert len(said) < 300
    assert len(stub.requests) == 1


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "it answered 400 'a b' to 'one'; see url, model and what is sent"),
        (404, "it answered 404 'a b' to 'one'; see url, model and what is sent"),
        (401, "it answered 401 'a b': it wants a key; name its variable in key"),
        (403, "it wants a key"),
    ],
)
def test_what_would_stay_as_it_is_is_not_asked_again(stub: Any, status: int, says: str) -> None:
    stub.answers = [(status, "a\nb")]
    assert says in failure(stub)
    assert len(stub.requests) == 1


def test_settings_by_the_names_that_users_know(stub: Any) -> None:
    stub.answers = [(401, "")]
    assert "name its variable in other.key" in failure(stub, settings={"key": "other.key"})


def test_the_key_is_in_nothing_that_is_kept(stub: Any) -> None:
    stub.answers = [(200, server_stub.completion(f"you said {KEY}"))]
    assert ask(stub, key=KEY) == "you said (the key)"
    for status in (200, 401, 500):
        stub.answers = [(status, f"bad key {KEY}")]
        said = failure(stub, key=KEY)
        assert KEY not in said
        assert "(the key)" in said
    stub.answers = [(200, server_stub.completion("none of them"))]
    assert ask(stub, key="none") == "none of them"  # what stands for a key, at a server that wants none


def test_half_a_character(stub: Any) -> None:
    stub.answers = [(200, json.dumps({"choices": [{"text": "a\ud83d"}]}))]
    assert ask(stub) == "a?"


def test_how_long_a_server_asks_to_wait() -> None:
    then = datetime.now(timezone.utc) + timedelta(seconds=30)
    assert 25 < _asked_pause(format_datetime(then, usegmt=True)) <= 30
    assert [_asked_pause(text) for text in ("3", "0.5", "", "soon")] == [3.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("asks", ["1000", "inf", "-5", "nan", "soon"])
def test_nobody_waits_for_ever(stub: Any, asks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corrigenda.serving._LONGEST_WAIT", 0.2)
    stub.answers, stub.headers = [(429, ""), (200, server_stub.completion("a"))], {"retry-after": asks}
    waited: list[float] = []

    class Noted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    monkeypatch.setattr("corrigenda.serving.threading", SimpleNamespace(Event=Noted, Lock=threading.Lock))
    assert ask(stub) == "a"
    assert len(waited) == 1
    assert 0 < waited[0] <= 0.2


def test_an_answer_that_cannot_be_kept_ends_it(stub: Any) -> None:
    def keep(_asked: str, _answer: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        Server(stub.url).ask({str(n): {"prompt": str(n)} for n in range(20)}, keep, "Asking", bar=False)
    assert len(stub.requests) <= 4  # one a thread


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("localhost:8080", "url='localhost:8080' must begin with http:// or https://"),
        ("http://", "must begin with http:// or https:// and name a host"),
        ("http://host:port", "is no address"),
        ("http://a..b/v1", "is no address"),
        ("http://host/v1\r", "name a host, in one line"),
        ("http://me:secret@host:port/v1", "must be an address alone"),
        ("http://me:secret@host/v1", "must be an address alone"),
        ("http://host/v1?key=secret", "must be an address alone"),
    ],
)
def test_what_is_no_address(url: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        require_address("url", url)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_keys_are_in_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", f" {KEY}\n")
    assert key_in("key", "THE_KEY") == KEY
    with pytest.raises(SettingsError, match="must be the name of an environment variable") as caught:
        key_in("key", KEY)
    assert KEY not in str(caught.value)
    with pytest.raises(SettingsError, match="key='NOT_THERE': there is no such environment variable"):
        key_in("key", "NOT_THERE")
