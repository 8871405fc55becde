"""The settings of ``job=verify``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from corrigenda import Fact
from corrigenda.errors import SettingsError
from corrigenda.serving import Server, Via, key_in, require_address
from corrigenda.settings.checked import AtLeastOne, Count, Positive, checked
from eval.verification.served import ServedPrompt, questions_of
from jobs.shared.job import require_folder

MAX_TOKENS: Mapping[Via, int] = {"completions": 20, "chat": 50}
"""The longest answers where none is named; a reply in a chat may repeat the question first."""


@dataclass(frozen=True)
@checked
class VerifySettings:
    """``job=verify``: ``corrigenda verify corrections.jsonl url=http://localhost:8080/v1``.

    Attributes:
        list: the file of corrections.
        url: the server's address, up to ``/v1``.
        model: the model's name there; None: none is sent.
        via: "completions", prompts as they stand; or "chat", through the server's chat template, where an answer holds
            that has the new object anywhere in it.
        key: the environment variable with the server's key, such as OPENAI_API_KEY; the key is written nowhere.
        send: further fields of each request, as ``{ignore_eos: true}``.
        before: what the answers are compared with that should stay: another address, a model as ``load`` takes it, or
            the folder of an earlier verification.
        before_model: the other model's name at the address before, or at the same one.
        before_key: as key, for the address before.
        folder: where the report goes; None: beside the list, ``NAME-verified``.
        max_tokens: the longest answer, where no object is longer; None: 20, in a chat 50.
        kept_tokens: for how many tokens a completion goes on where it should stay.
        timeout: seconds until a request counts as lost.
        retries: how often a request is made again that was lost, or met a server that was busy or in trouble.
        parallel: requests at once.
    """

    group: ClassVar[str] = "job"

    list: str
    url: str
    model: str | None = None
    via: Via = "completions"
    key: str | None = None
    send: Mapping[str, Any] | None = None
    before: str | None = None
    before_model: str | None = None
    before_key: str | None = None
    folder: str | None = None
    max_tokens: AtLeastOne | None = None
    kept_tokens: AtLeastOne = 10
    timeout: Positive = 120.0
    retries: Count = 3
    parallel: AtLeastOne = 4

    def __post_init__(self) -> None:
        for name in ("key", "before_key"):
            if (variable := getattr(self, name)) is not None:
                key_in(f"job.{name}", variable)  # first, for other messages are longer
        require_address("job.url", self.url)
        require_folder("job.folder", self.place)
        if not self.before_is_served:
            if (self.before_model, self.before_key) != (None, None):
                raise SettingsError(
                    f"job.before={self.before}: before_model and before_key are of an address; leave them out"
                )
            return
        if self.before_key is not None and self.before in (None, self.url):
            raise SettingsError(
                f"job.before_key={self.before_key}: the model before is at the same address, which key is for; leave "
                "it out"
            )
        require_address("job.before", self.before or self.url)
        old, new = self.server(before=True), self.server()
        if (old.address, old.sends) == (new.address, new.sends):
            raise SettingsError(
                f"job.before_model={self.before_model}: this is the model that is verified; name another, or leave "
                "before and before_model out"
            )

    @property
    def before_is_served(self) -> bool:
        """Whether the model before is behind an address."""
        if self.before is None:
            return self.before_model is not None
        return self.before.startswith(("http://", "https://"))

    @property
    def longest(self) -> int:
        """The longest answer."""
        return self.max_tokens or MAX_TOKENS[self.via]

    @property
    def place(self) -> Path:
        """Where the report goes."""
        return Path(self.folder or Path(self.list).with_suffix("").as_posix() + "-verified").expanduser()

    def questions(self, facts: Sequence[Fact]) -> tuple[ServedPrompt, ...]:
        """What is asked, each once."""
        each = (questions_of(fact, self.via, self.longest, self.kept_tokens) for fact in facts)
        return tuple(dict.fromkeys(question for some in each for question in some))

    def server(self, before: bool = False) -> Server:
        """The server that is verified, or the one before."""
        url, model, key, of = self.url, self.model, self.key, "key"
        if before:
            model = self.before_model
            if self.before is not None and self.before != self.url:
                url, key, of = self.before, self.before_key, "before_key"
        return Server(
            url,
            self.via,
            {**({} if model is None else {"model": model}), "temperature": 0, **(self.send or {})},
            None if key is None else key_in(f"job.{of}", key),
            timeout=self.timeout,
            retries=self.retries,
            parallel=self.parallel,
            name=f"the server{'' if model is None else f' of {model}'}",
            settings={"url": "before", "model": "before_model", "key": of} if before else {},
        )
