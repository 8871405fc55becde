"""`Endpoint`: a model behind an address that speaks OpenAI's protocol of chat completions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from corrigenda.errors import CorrigendaError
from corrigenda.system.progress import track
from corrigenda.text.display import on_one_line

if TYPE_CHECKING:
    import httpx

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""The states of a server that may be others a moment later."""

_LONGEST_WAIT = 60.0
"""Seconds between two tries, at most, also where the server asks for more."""

Keep = Callable[[str, str], None]
"""Is told of each prompt and its reply when it has come."""


class JudgeError(CorrigendaError, ConnectionError):
    """A judge that cannot be asked; the message says which, what happened, and what to do."""


class Endpoint:
    """Asks a model at an address.

    Args:
        url: the address before ``/chat/completions``, such as ``http://localhost:8000/v1``.
        asked_with: what is sent with each prompt: the model's name, the most tokens, the temperature, ...
        key: goes into the header of each request, and into no message.
        timeout: seconds until a request counts as lost.
        retries: how often a request is made again.
        wait: seconds before it is made again the first time; each further time twice as long.
        parallel: requests at once.
    """

    def __init__(
        self,
        url: str,
        asked_with: dict[str, Any],
        key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 5,
        wait: float = 1.0,
        parallel: int = 4,
    ) -> None:
        self._url = url
        self._address = url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        self._asked_with = asked_with
        self._key = key
        self._timeout = timeout
        self._retries = retries
        self._wait = wait
        self._parallel = parallel

    def ask(self, prompts: Sequence[str], keep: Keep) -> None:
        """Asks everything, several at once.

        Raises:
            JudgeError: there is no reply to one of them; those that came before were kept.
        """
        import httpx

        stop = threading.Event()
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        with httpx.Client(headers=headers, timeout=self._timeout) as client:

            def one(prompt: str) -> None:
                keep(prompt, self._reply(client, prompt, stop))

            pool = ThreadPoolExecutor(self._parallel, thread_name_prefix="judge")
            try:
                waiting = [pool.submit(one, prompt) for prompt in prompts]
                for each in track(waiting, f"Asking the judge about {len(prompts)} answers", bar=False):
                    each.result()
            finally:
                stop.set()  # after an error or Ctrl-C nobody goes on trying
                pool.shutdown(cancel_futures=True)

    def _reply(self, client: httpx.Client, prompt: str, stop: threading.Event) -> str:
        """The reply to one prompt, if need be at a later try; no further one once `stop` is set."""
        import httpx

        body = self._asked_with | {"messages": [{"role": "user", "content": prompt}]}
        for number in range(self._retries + 1):
            pause = self._wait * 2**number
            try:
                response = client.post(self._address, json=body)
            except httpx.TimeoutException:
                problem = f"there was no answer within {self._timeout:g} s (judge.timeout)"
            except httpx.RequestError as error:
                problem = f"it cannot be reached ({self._without_key(str(error)) or type(error).__name__})"
            else:
                if response.status_code not in _AGAIN:
                    return self._content(response)
                problem = f"it answered {self._said(response)}"
                pause = _asked_pause(response, pause)
            if number < self._retries and stop.wait(min(pause, _LONGEST_WAIT)):
                break
        raise self._failed(f"{problem}, after {self._retries + 1} tries; see that it runs, and go on with the same run")

    def _content(self, response: httpx.Response) -> str:
        """The text in a response."""
        if response.status_code in (401, 403):
            known = "its key was refused" if self._key is not None else "it wants a key; name its variable in judge.key"
            raise self._failed(f"it answered {self._said(response)}: {known}")
        if response.status_code != 200:
            raise self._failed(f"it answered {self._said(response)}; see judge.url, judge.model and what is sent")
        try:
            content = response.json()["choices"][0]["message"]["content"]
            return "" if content is None else _text(content)  # null: all its tokens went into thoughts
        except (ValueError, KeyError, IndexError, TypeError):
            raise self._failed(f"its reply is no chat completion: {self._said(response)}; see judge.url") from None

    def _said(self, response: httpx.Response) -> str:
        return f"{response.status_code} {on_one_line(self._without_key(response.text), 160)!r}"

    def _without_key(self, text: str) -> str:
        """A text of the server's, which may repeat the key that it was given."""
        return text if not self._key else text.replace(self._key, "(the key)")

    def _failed(self, problem: str) -> JudgeError:
        return JudgeError(f"the judge {self._asked_with.get('model')} at {self._url}: {problem}")


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise TypeError(f"no text: {content!r}")
    return content


def _asked_pause(response: httpx.Response, pause: float) -> float:
    """How long to wait: what the server asks for, where that is longer."""
    try:
        return max(pause, float(response.headers.get("retry-after", 0)))
    except ValueError:  # a date
        return pause
