"""`Server`: a model behind an address that speaks OpenAI's protocol, as llama.cpp, vLLM and `transformers serve` do."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from corrigenda.errors import CorrigendaError, SettingsError
from corrigenda.settings.checked import short_repr
from corrigenda.system.progress import track
from corrigenda.text.display import on_one_line

if TYPE_CHECKING:
    import httpx

K = TypeVar("K")
Via = Literal["completions", "chat"]
"""Whether a text is gone on after as it stands, or a chat template puts it to the model."""

_PATHS: dict[Via, str] = {"completions": "/completions", "chat": "/chat/completions"}

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""The states of a server that may be others a moment later."""

_LONGEST_WAIT = 60.0
"""Seconds between two tries, at most, also where the server asks for more."""

_LONGEST_REPLY = 2**22
"""Bytes of a reply, at most."""

_SHORTEST_KEY = 8
"""Characters of a key, at least; what is shorter ("none", "EMPTY") stands for one, and may be a word of an answer."""


class ServerError(CorrigendaError, ConnectionError):
    """A server that cannot be asked; the message says which, what happened, and what to do."""


@dataclass(frozen=True)
class Server:
    """A model at an address.

    Attributes:
        url: the address up to ``/v1``, such as ``http://localhost:8080/v1``.
        via: how it is asked.
        sends: what goes with each request: the model's name, the temperature, ...
        key: goes into the header of each request, and into no message if it has 8 characters.
        timeout: seconds until a request counts as lost.
        retries: how often a request is made again.
        wait: seconds before it is made again the first time; each further time twice as long, or what the server asks
            for, at most a minute.
        parallel: requests at once.
        name: what messages call it.
        settings: what messages call its settings (url, model, key, timeout), where that is another name.
    """

    url: str
    via: Via = "completions"
    sends: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = field(default=None, repr=False)
    timeout: float = 60.0
    retries: int = 5
    wait: float = 1.0
    parallel: int = 4
    name: str = "the server"
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where requests go."""
        base = self.url.rstrip("/")
        for path in sorted(_PATHS.values(), key=len, reverse=True):
            base = base.removesuffix(path)
        return base + _PATHS[self.via]

    def ask(
        self, requests: Mapping[K, Mapping[str, Any]], keep: Callable[[K, str], None], doing: str, bar: bool
    ) -> None:
        """Makes requests, several at once: what each sends beside `sends`: "prompt" or "messages", "max_tokens", ...

        `keep` is told of each, and of its answer, when it has come; of one after the other. Raises ServerError: there
        is no answer to one of them; those that came before were kept.
        """
        import httpx

        stop, failed, one_by_one = threading.Event(), threading.Event(), threading.Lock()
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        with httpx.Client(headers=headers, timeout=self.timeout) as client:

            def one(asked: K, request: Mapping[str, Any]) -> None:
                if failed.is_set():  # the thread that waits for the answers has yet to hear of it
                    return
                try:
                    answer = self._answer(client, {**self.sends, **request}, stop)
                    with one_by_one:
                        keep(asked, answer)
                except BaseException:
                    failed.set()
                    raise

            pool = ThreadPoolExecutor(self.parallel, thread_name_prefix="asking")
            try:
                waiting = [pool.submit(one, *request) for request in requests.items()]
                for each in track(as_completed(waiting), doing, bar=bar, total=len(waiting)):
                    each.result()
            finally:
                stop.set()  # after an error or Ctrl-C nobody goes on trying
                pool.shutdown(cancel_futures=True)

    def _answer(self, client: httpx.Client, body: Mapping[str, Any], stop: threading.Event) -> str:
        """The answer to one request, if need be at a later try; no further one once `stop` is set."""
        import httpx

        for number in range(self.retries + 1):
            pause = self.wait * 2**number
            try:
                reply = self._post(client, body)
            except httpx.TimeoutException:
                problem = f"there was no answer within {self.timeout:g} s ({self._setting('timeout')})"
            except httpx.ConnectError as error:
                problem = f"it cannot be reached ({self._without_key(str(error)) or type(error).__name__})"
            except httpx.RequestError as error:
                problem = f"its reply broke off ({self._without_key(str(error)) or type(error).__name__})"
            else:
                if reply.status not in _AGAIN:
                    return self._text(reply, body)
                problem = f"it answered {self._said(reply)}"
                pause = max(pause, _asked_pause(reply.retry_after))
            if number < self.retries and stop.wait(min(pause, _LONGEST_WAIT)):
                break
        tries = f"{self.retries + 1} tries" if self.retries else "one try"
        raise self._failed(
            f"{problem}, after {tries}; see that it runs, and give the same command again: what was answered is kept"
        )

    def _post(self, client: httpx.Client, body: Mapping[str, Any]) -> _Reply:
        """Makes one request. A reply that never ends is given up: `timeout` is not only between two of its parts."""
        import httpx

        end, content = time.monotonic() + self.timeout, bytearray()
        with client.stream("POST", self.address, json=body) as response:
            for part in response.iter_bytes():
                content += part
                if time.monotonic() > end:
                    raise httpx.ReadTimeout("")
                if len(content) > _LONGEST_REPLY:
                    raise self._failed(f"its reply has more than {_LONGEST_REPLY} bytes; see {self._setting('url')}")
            return _Reply(response.status_code, bytes(content), response.headers.get("retry-after", ""))

    def _text(self, reply: _Reply, body: Mapping[str, Any]) -> str:
        """The text in a reply."""
        url, model, key = map(self._setting, ("url", "model", "key"))
        if reply.status in (401, 403):
            known = "its key was refused" if self.key is not None else f"it wants a key; name its variable in {key}"
            raise self._failed(f"it answered {self._said(reply)}: {known}")
        if reply.status != 200:
            asked = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
            raise self._failed(
                f"it answered {self._said(reply)} to {on_one_line(asked)!r}; see {url}, {model} and what is sent"
            )
        try:
            choice = json.loads(reply.content)["choices"][0]
            text = choice["text"] if self.via == "completions" else choice["message"]["content"]
            if text is None and self.via == "chat":  # all its tokens went into thoughts
                return ""
            whole = text.encode(errors="replace").decode()  # without halves of characters, which no file can hold
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            what = "completion" if self.via == "completions" else "chat completion"
            raise self._failed(f"its reply is no {what}: {self._said(reply)}; see {url}") from None
        return self._without_key(whole)

    def _setting(self, name: str) -> str:
        return self.settings.get(name, name)

    def _said(self, reply: _Reply) -> str:
        return f"{reply.status} {on_one_line(self._without_key(reply.content.decode(errors='replace')), 160)!r}"

    def _without_key(self, text: str) -> str:
        """A text of the server's, which may repeat the key that it was given."""
        key = self.key or ""
        return text if len(key) < _SHORTEST_KEY else text.replace(key, "(the key)")

    def _failed(self, problem: str) -> ServerError:
        return ServerError(f"{self.name} at {self.url}: {problem}")


@dataclass(frozen=True)
class _Reply:
    """What came of one request; `retry_after` is the header of that name."""

    status: int
    content: bytes
    retry_after: str


def _asked_pause(retry_after: str) -> float:
    """How many seconds a server asks to wait (RFC 9110, Retry-After: seconds, or a date); 0 where it asks nothing."""
    try:
        return float(retry_after)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(retry_after) - datetime.now(timezone.utc)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def require_address(setting: str, url: str) -> None:
    """Checks the address of a server that a setting names; a SettingsError where it is none, or may hold a secret."""
    if set("@?#").intersection(url):
        # First of all, and not shown: what stands there may be secret.
        raise SettingsError(
            f"{setting}= must be an address alone, without a name, a password or anything after a '?'; it is written "
            "into the run's files. Put the key into an environment variable and name that in key"
        )
    try:
        parts = urlsplit(url)
        _ = parts.port, (parts.hostname or "").encode("idna")  # as it is looked up
    except ValueError as error:
        raise SettingsError(f"{setting}={short_repr(url)} is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        raise SettingsError(
            f"{setting}={short_repr(url)} must begin with http:// or https:// and name a host, in one line"
        )


def key_in(setting: str, variable: str) -> str:
    """The key in an environment variable that a setting names, or a SettingsError where that holds none."""
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable):
        # Not shown: it may be the key itself.
        raise SettingsError(
            f"{setting}= must be the name of an environment variable, in capital letters (OPENAI_API_KEY); the key "
            "itself belongs into that variable, and into no setting"
        )
    key = os.environ.get(variable, "").strip()
    if not key:
        raise SettingsError(f"{setting}={variable!r}: there is no such environment variable, or it is empty; set it")
    if not re.fullmatch(r"[!-~]+", key):
        raise SettingsError(f"{setting}={variable!r}: what this environment variable holds is no key; set it again")
    return key
