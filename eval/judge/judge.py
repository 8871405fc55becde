"""`Judge`: which model is asked whether an answer is right, and how."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from corrigenda.errors import CorrigendaError, SettingsError
from corrigenda.serving import Server, ServerError, key_in, require_address
from corrigenda.settings.checked import AtLeastOne, Count, NotNegative, Positive, Seed, checked
from corrigenda.system.files import cache_folder, expanded
from eval.judge.replies import Replies


class JudgeError(CorrigendaError, ConnectionError):
    """A judge that cannot be asked; the message says which, what happened, and what to do."""


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
            key_in("Judge: key", self.key)  # first, for other messages are longer
        if self.url is None:
            for name in ("model", "key"):
                if getattr(self, name) is not None:
                    raise SettingsError(f"Judge: {name}={getattr(self, name)!r} is of an endpoint; give its url too")
            return
        if self.local is not None:
            raise SettingsError(f"Judge: url={self.url!r} and local={self.local!r} are two judges; give one of them")
        require_address("Judge: url", self.url)
        if not self.model:
            raise SettingsError(
                f"Judge: model={self.model!r} must name the model that is asked at {self.url} ({self.url.rstrip('/')}"
                "/models lists those that it has)"
            )

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
            self._ask(missing, keep)
        return [str(found[prompt]) for prompt in prompts]

    # The object holds these, and nothing global does: a model that is loaded stays loaded as long as its judge.

    def _ask(self, prompts: Sequence[str], keep: Callable[[str, str], None]) -> None:
        if self.local is not None:
            self._loaded.ask(prompts, keep)
            return
        assert self.url is not None
        server = Server(
            self.url,
            "chat",
            self._asked_with,
            None if self.key is None else key_in("Judge: key", self.key),
            timeout=self.timeout,
            retries=self.retries,
            wait=self.wait,
            parallel=self.parallel,
            name=f"the judge {self.model}",
            settings={name: f"judge.{name}" for name in ("url", "model", "key", "timeout")},
        )
        requests = {prompt: {"messages": [{"role": "user", "content": prompt}]} for prompt in prompts}
        try:
            server.ask(requests, keep, f"Asking the judge about {len(prompts)} answers", bar=False)
        except ServerError as error:
            raise JudgeError(str(error)) from None

    @cached_property
    def _loaded(self) -> Any:
        from eval.judge.local import LocalModel  # torch

        assert self.local is not None
        return LocalModel(self.local, self.max_tokens)

    @property
    def _asked_with(self) -> dict[str, Any]:
        """What goes to the endpoint with each prompt."""
        values = {"model": self.model, "temperature": self.temperature, "seed": self.seed}
        return {name: value for name, value in values.items() if value is not None} | {"max_tokens": self.max_tokens}

    @cached_property
    def _kept(self) -> Replies:
        return Replies(cache_folder() / "verdicts" if self.cache is None else expanded(self.cache), self.identity)

    @property
    def identity(self) -> dict[str, Any]:
        """What its replies depend on; of a model in this process, which is loaded for it, the weights."""
        if self.local is not None:
            return {**self._loaded.identity, "max_tokens": self.max_tokens}
        return {"url": self.url, **self._asked_with} if self.named else {}
