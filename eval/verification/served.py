"""What a running model says to the prompts of a list: asked over its server, and made measurements of.

A server tells texts and no probabilities. So the verdict of a build is what is left of a verification: free answers to
the prompt and its paraphrases, and how the model goes on where its answers should stay.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corrigenda import Fact, load
from corrigenda.errors import SettingsError
from corrigenda.forward.generation import decode
from corrigenda.models.bare import first_line
from corrigenda.models.chat import chat_tokens
from corrigenda.serving import Server, Via
from corrigenda.system.progress import track
from eval.evaluation import Case
from eval.judge.verdicts import without_thoughts
from eval.measurement import Measurement
from eval.metrics import METRICS, native_consistency
from eval.real_use.questions import as_question
from eval.records import Record, ScoredProbe, ScoredPrompt
from eval.scoring.fitting import BESIDE
from eval.scoring.free_answers import batches_to_decode
from eval.settings import EvalSettings
from eval.verification.verify import Mark, Verified

MARKS: Mapping[Via, Mark] = {"completions": "strict", "chat": "lenient"}
"""By how a model is asked, which answers hold: a reply in a chat may repeat the question first."""


@dataclass(frozen=True)
class ServedPrompt:
    """What is asked once, whichever facts have it: a prompt, whose answer may be one that should stay what it was.

    The longest answer is in tokens; with `one_line` a completion ends at a line break.
    """

    prompt: str
    stays: bool
    max_tokens: int
    one_line: bool

    def request(self, via: Via) -> dict[str, Any]:
        """What a server is sent."""
        if via == "chat":
            messages = [{"role": "user", "content": as_question(self.prompt)}]
            return {"messages": messages, "max_tokens": self.max_tokens}
        stop = {"stop": ["\n"]} if self.one_line else {}
        return {"prompt": self.prompt, "max_tokens": self.max_tokens, **stop}

    def answer(self, said: str, via: Via) -> str:
        """The answer in what was said: without thoughts, and up to where it ends."""
        if via == "chat":
            return without_thoughts(said)
        return first_line(said) if self.one_line else said


Answers = Mapping[ServedPrompt, str]


def questions_of(fact: Fact, via: Via, max_tokens: int, kept_tokens: int) -> Iterator[ServedPrompt]:
    """The questions of a fact: its prompt and paraphrases, and where answers should stay, asked `via` a chat or not.

    `max_tokens` is the longest answer, where the fact's object has room in it; a completion goes on for `kept_tokens`
    where it should stay.
    """
    objects = [f"{fact.joint or ''}{answer}" for answer in fact.answers]
    room = max(max_tokens, *(len(each.encode()) + BESIDE for each in objects))  # no token is shorter than a byte
    for prompt in (fact.statement, *fact.paraphrases):
        yield ServedPrompt(prompt, False, room, not any("\n" in each for each in objects))
    for prompt in (*fact.neighbourhood, *(probe.prompt for probe in fact.locality)):
        yield ServedPrompt(prompt, True, max_tokens if via == "chat" else kept_tokens, False)


@dataclass(frozen=True)
class Served:
    """A model behind a server."""

    server: Server

    @property
    def identity(self) -> Mapping[str, Any]:
        """What makes it the same one, asked in the same way: its address and what it is sent."""
        return {"address": self.server.address, **self.server.sends}

    def ask(self, questions: Sequence[ServedPrompt], keep: Callable[[ServedPrompt, str], None], doing: str) -> None:
        """Asks; `keep` is told of each answer when it has come, and `doing` is for the progress.

        Raises ServerError: there is no answer; those that came before were kept.
        """
        requests = {question: question.request(self.server.via) for question in questions}
        self.server.ask(requests, keep, doing, bar=True)


class Loaded:
    """A model in this process, by the name that `load` takes, asked as a server is.

    Raises SettingsError: it is to be asked in a chat, and has no chat template; or as `load` says.
    """

    def __init__(self, name: str, via: Via) -> None:
        self._lm = load(name)
        self._via = via
        if via == "chat" and not self._lm.tokenizer.chat_template:
            raise SettingsError(f"before={name}: it has no chat template; leave via=chat out, or name another model")

    @property
    def identity(self) -> Mapping[str, Any]:
        """Its weights and their precision."""
        return {"fingerprint": self._lm.fingerprint, "dtype": str(self._lm.dtype), "via": self._via}

    def ask(self, questions: Sequence[ServedPrompt], keep: Callable[[ServedPrompt, str], None], doing: str) -> None:
        """As `Served`. Raises ContextLengthError: a prompt is longer than it reads."""
        lm = self._lm
        prompts = [self._tokens(question.prompt) for question in questions]
        limits = [question.max_tokens for question in questions]
        batches = list(batches_to_decode(lm, questions, prompts, limits, EvalSettings()))
        for part, rows, start in track(batches, doing):
            most = [question.max_tokens for question in part]
            for question, added in zip(part, decode(lm, rows, most, start=start), strict=True):
                keep(question, lm.text(added))

    def _tokens(self, prompt: str) -> list[int]:
        if self._via == "chat":
            return chat_tokens(self._lm.tokenizer, [("user", as_question(prompt))]) or []
        return self._lm.tokens(prompt)


def verified(
    facts: Sequence[Fact], answers: Answers, before: Answers | None, via: Via, max_tokens: int, kept_tokens: int
) -> list[Verified]:
    """What answers to the questions of the facts come to; `before` is what another model said, if any."""
    found = []
    for fact in facts:
        asked = list(dict.fromkeys(questions_of(fact, via, max_tokens, kept_tokens)))
        old = None if before is None else _measured(fact, asked, before, None, via)
        now = _measured(fact, asked, answers, old, via)
        if old is None:  # nothing is known of an unedited model
            for metric in native_consistency.METRICS:
                now.values.pop(metric.key, None)
        found.append(Verified(Case(fact, old, now), MARKS[via]))
    return found


def _measured(
    fact: Fact, asked: Sequence[ServedPrompt], answers: Answers, before: Measurement | None, via: Via
) -> Measurement:
    """The measurement of one fact; with the one before, of what stayed, too."""
    said = {(one.stays, one.prompt): one.answer(answers[one], via) for one in asked if one in answers}
    prompts: dict[str, list[Record]] = {
        "prompt": [ScoredPrompt(fact.statement, answer=said.get((False, fact.statement)))],
        "paraphrases": [ScoredPrompt(prompt, answer=said.get((False, prompt))) for prompt in fact.paraphrases],
        "neighbourhood": [ScoredPrompt(prompt, answer=said.get((True, prompt))) for prompt in fact.neighbourhood],
        "locality": [
            ScoredProbe(probe.prompt, answer=said.get((True, probe.prompt)), group=probe.group or None)
            for probe in fact.locality
        ],
    }
    found = Measurement({kind: records for kind, records in prompts.items() if records})
    old = {} if before is None else {record.prompt: record.answer for record in before.elsewhere()}
    for record in found.elsewhere():
        if (then := old.get(record.prompt)) is not None and record.answer is not None:
            record.blank = not (then if via == "chat" else first_line(then)).strip()
            record.preserved = record.answer.strip() == then.strip() if then.strip() else None
    METRICS.judge(fact, found)
    found.values = METRICS.computed(before, found)
    return found
