"""`Judge`: which model is asked whether an answer is right, and how."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, Count, NotNegative, Positive, Seed, checked, short_repr
from corrigenda.system.files import cache_folder, expanded
from eval.judge.endpoint import Endpoint
from eval.judge.replies import Replies


@dataclass(frozen=True)
@checked
class Judge:
    """A model that is asked whether answers are right: behind an address, or in this process. Without either, none.

    Attributes:
        url: the address of an endpoint that speaks OpenAI's protocol, up to ``/v1``.
        model: the model's name there.
        key: the environment variable with the key, such as OPENAI_API_KEY; None: no key is sent. The key itself is
            read when the judge is asked, and written nowhere.
        local: a model to load instead, as `corrigenda.load` takes it.
        max_tokens: the longest reply; more for a model that thinks first.
        temperature: of the replies of an endpoint; None: not sent.
        seed: for the endpoint, where it knows one; None: not sent.
        timeout: seconds until a request counts as lost.
        retries: how often a request is made again that was lost, or met a server that was busy or in trouble.
        wait: seconds before it is made again the first time; each further time twice as long.
        parallel: requests at once.
        cache: the folder where replies are kept; None: in the user's cache folder.
    """

    url: str | None = None
    model: str | None = None
    key: str | None = None
    local: str | None = None
    max_tokens: AtLeastOne = 16
    temperature: NotNegative | None = 0.0
    seed: Seed | None = 0
    timeout: Positive = 60.0
    retries: Count = 5
    wait: Positive = 1.0
    parallel: AtLeastOne = 4
    cache: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            self._check_key(self.key)  # first, for other messages are longer
        if self.url is None:
            for name in ("model", "key"):
                if getattr(self, name) is not None:
                    raise SettingsError(f"Judge: {name}={getattr(self, name)!r} is of an endpoint; give its url too")
            return
        if self.local is not None:
            raise SettingsError(f"Judge: url={self.url!r} and local={self.local!r} are two judges; give one of them")
        self._check_url(self.url)
        if not self.model:
            raise SettingsError(
                f"Judge: model={self.model!r} must name the model that is asked at {self.url} ({self.url.rstrip('/')}"
                "/models lists those that it has)"
            )

    @staticmethod
    def _check_url(url: str) -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise SettingsError(f"Judge: url={short_repr(url)} is no address: {error}") from None
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            # Not shown: what stands there may be secret.
            raise SettingsError(
                "Judge: url= must be an address alone, without a name, a password or anything after a '?'; it is "
                "written into the run's files. Put the key into an environment variable and name that in key"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"Judge: url={short_repr(url)} must begin with http:// or https:// and name a host")

    @staticmethod
    def _check_key(key: str) -> None:
        if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", key):
            # Not shown: it may be the key itself.
            raise SettingsError(
                "Judge: key= must be the name of an environment variable, in capital letters (OPENAI_API_KEY); the "
                "key itself belongs into that variable, and into no setting"
            )
        if not os.environ.get(key):
            raise SettingsError(f"Judge: key={key!r}: there is no such environment variable, or it is empty; set it")
        if not re.fullmatch(r"[!-~]+", os.environ[key].strip()):
            raise SettingsError(f"Judge: key={key!r}: what this environment variable holds is no key; set it again")

    @property
    def named(self) -> bool:
        """Whether there is a judge."""
        return self.url is not None or self.local is not None

    def replies(self, prompts: Sequence[str]) -> list[str]:
        """What the judge says to prompts; what it was asked before, with the same settings, is not asked again.

        Raises:
            JudgeError: an endpoint cannot be asked.
            SettingsError: there is no judge.
        """
        if not self.named:
            raise SettingsError("Judge: there is none to ask; give url and model, or local")
        found = {prompt: self._kept.get(prompt) for prompt in dict.fromkeys(prompts)}
        missing = [prompt for prompt, reply in found.items() if reply is None]

        def keep(prompt: str, reply: str) -> None:
            self._kept.keep(prompt, reply)  # at once: a run that ends before all have come goes on from here
            found[prompt] = reply

        if missing:
            self._asked.ask(missing, keep)
        return [str(found[prompt]) for prompt in prompts]

    # The object holds these, and nothing global does: a model that is loaded stays loaded as long as its judge.

    @cached_property
    def _asked(self) -> Any:
        if self.local is not None:
            from eval.judge.local import LocalModel  # torch

            return LocalModel(self.local, self.max_tokens)
        assert self.url is not None
        return Endpoint(
            self.url,
            self._asked_with,
            None if self.key is None else os.environ[self.key].strip(),
            timeout=self.timeout,
            retries=self.retries,
            wait=self.wait,
            parallel=self.parallel,
        )

    @property
    def _asked_with(self) -> dict[str, Any]:
        """What goes to the endpoint with each prompt."""
        values = {"model": self.model, "temperature": self.temperature, "seed": self.seed}
        return {name: value for name, value in values.items() if value is not None} | {"max_tokens": self.max_tokens}

    @cached_property
    def _kept(self) -> Replies:
        folder = cache_folder() / "verdicts" if self.cache is None else expanded(self.cache)
        if self.local is not None:
            return Replies(folder, {**self._asked.identity, "max_tokens": self.max_tokens})
        return Replies(folder, {"url": self.url, **self._asked_with})
