"""`Fact`: one requested change to a model's knowledge, and the prompts that probe it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corrigenda.errors import FactError
from corrigenda.settings.checked import short_repr
from corrigenda.text.display import half_of_a_character
from corrigenda.text.joints import joined, joint
from corrigenda.text.names import did_you_mean
from corrigenda.text.words import normal_form

Verb = Literal["insert", "modify", "erase"]

SLOT = "{}"
"""Stands for the subject in a fact's prompt."""


@dataclass(frozen=True)
class Probe:
    """A prompt with the answer that is right for it.

    Attributes:
        prompt: a complete prompt, with no placeholder, that ends where the answer begins (without the space between).
        answer: the expected answer; white space as of a fact's `target_new`.
        aliases: other answers that count as right in free generation.
        group: what the probe tests, where a benchmark tells kinds of probes apart ("subject_aliasing"): a name in lower
            case, digits and underscores. Groups are measured separately too.
    """

    prompt: str
    answer: str
    aliases: tuple[str, ...] = ()
    group: str = ""

    def __post_init__(self) -> None:
        _require_prompt("prompt", self.prompt)
        object.__setattr__(self, "answer", _target("answer", self.answer, self.prompt))
        object.__setattr__(self, "aliases", _texts("aliases", self.aliases))
        # It becomes a part of metrics' names.
        if not isinstance(self.group, str) or not re.fullmatch(r"[a-z0-9_]*", self.group):
            raise FactError("group", f"must be of lower-case letters, digits and underscores, got {self.group!r}")

    @property
    def answers(self) -> tuple[str, ...]:
        """The answer and its aliases."""
        return (self.answer, *self.aliases)


@dataclass(frozen=True)
class Fact:
    """One requested change: "`prompt` about `subject` shall be completed with `target_new`".

    The three verbs follow from the targets: *modify* has both, *insert* has no `target_true`,
    *erase* has no `target_new`.

    Attributes:
        subject: the entity the fact is about.
        prompt: the statement with one ``{}`` where the subject goes; it ends where the object begins, without the space
            between them: that belongs to the object. It may end in a line break or an indentation.
        target_new: the object the model shall give after the edit, or None to erase. What stands between the prompt and
            it follows from the prompt's end and the script (`corrigenda.text.joints.joint`); a target that begins with
            other white space, as a line break, is kept as it is. White space at its end is left out, with a warning.
        target_true: the object it gives now, or None to insert; as `target_new`.
        id: a name unique in its set; derived from the statement and the targets when left empty.
        relation: the relation's name or Wikidata id, if known.
        aliases: other spellings of `target_new` that count as right in free generation.
        paraphrases: prompts that say the same in other words; a ``{}`` in one is filled with the subject.
        neighbourhood: complete prompts about *other* subjects of the same relation whose right answer is
            `target_true`; the edit must leave them alone. They name their own subject: a ``{}`` is an error.
        locality: unrelated prompts with their expected answers; the edit must leave them alone.
        portability: prompts whose answer is a consequence of the new fact.
        generation: prompts about the subject for free text (fluency); a ``{}`` in one is filled with the subject.
        negations: prompts that deny the statement, which `target_new` would make false; a ``{}`` in one is filled with
            the subject. Where there are none, as with the two below, `corrigenda.data.side_effects` makes some.
        reversals: complete prompts that name the new object and ask for the subject.
        same_subject: prompts about other things of the subject, which the edit must leave alone; a ``{}`` in one is
            filled with the subject.
        frames: other ways to ask, each with one ``{}`` for the subject, for editors to learn from
            (`editing.shared.frames`). They are not scored, and none may be among the paraphrases, which are.
        other_names: of the subject, by which prompts may name it, too, for entries that look for its words.
        joint: what stands between a prompt and the fact's objects, white space or nothing, where it is not what follows
            from the prompt's end and the script.

    Raises:
        FactError: a field has the wrong type, is empty where it must not be, or contradicts another.
    """

    subject: str
    prompt: str
    target_new: str | None
    target_true: str | None = None
    id: str = ""
    relation: str | None = None
    aliases: tuple[str, ...] = ()
    paraphrases: tuple[str, ...] = ()
    neighbourhood: tuple[str, ...] = ()
    locality: tuple[Probe, ...] = ()
    portability: tuple[Probe, ...] = ()
    generation: tuple[str, ...] = ()
    negations: tuple[str, ...] = ()
    reversals: tuple[str, ...] = ()
    same_subject: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    other_names: tuple[str, ...] = ()
    joint: str | None = None

    def __post_init__(self) -> None:
        _require_text("subject", self.subject)
        if (subject := self.subject.strip()) != self.subject:
            warnings.warn(f"subject={self.subject[:40]!r}: white space around a subject is left out", stacklevel=3)
            object.__setattr__(self, "subject", subject)
        _require_text("prompt", self.prompt)
        if SLOT in self.subject:
            raise FactError(
                "subject", f"must not hold '{SLOT}', which stands for the subject in a prompt: {self.subject!r}"
            )
        if self.prompt.count(SLOT) != 1:
            found = f"found {self.prompt.count(SLOT)} in {self.prompt!r}"
            if SLOT not in self.prompt and self.subject in self.prompt:
                found += f"; did you mean {self.prompt.replace(self.subject, SLOT, 1)!r}?"
            raise FactError("prompt", f"needs exactly one '{SLOT}' for the subject, {found}")
        _refuse_space_at_end("prompt", self.statement)
        if self.joint is not None and (not isinstance(self.joint, str) or self.joint.strip()):
            raise FactError("joint", f"must be white space or empty, got {self.joint!r}; words belong to the prompt")
        for name in ("target_new", "target_true"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _target(name, getattr(self, name), self.statement, self.joint))
        if self.target_new is None and self.target_true is None:
            raise FactError("target_new", "target_new and target_true are both missing; give at least one")
        if self.verb == "modify" and self.target_new == self.target_true:
            problem = f"is the same as target_true ({self.target_new!r}), so there is nothing to change"
            raise FactError("target_new", problem)
        if self.relation is not None:
            _require_text("relation", self.relation)
        for name in ("aliases", "other_names"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        if self.target_true in self.aliases:  # the model's old answer would count as right
            raise FactError("aliases", f"have target_true ({self.target_true!r}) among them; leave it out there")
        for name in ("paraphrases", "generation", "negations", "same_subject"):
            filled = (text.replace(SLOT, self.subject) for text in _texts(name, getattr(self, name)))
            object.__setattr__(self, name, _prompts(name, tuple(filled)))
        for name in ("neighbourhood", "reversals"):
            object.__setattr__(self, name, _prompts(name, getattr(self, name)))
        object.__setattr__(self, "frames", _texts("frames", self.frames))
        self._require_frames()
        for name in ("locality", "portability"):
            object.__setattr__(self, name, _probes(name, getattr(self, name)))
        if not isinstance(self.id, str):
            raise FactError("id", f"must be a string, got {self.id!r}")
        if self.id:
            _require_text("id", self.id)
        else:
            said = [] if self.joint is None else [self.joint]
            key = json.dumps([self.subject, self.prompt, self.target_new, self.target_true, *said])
            object.__setattr__(self, "id", hashlib.sha256(key.encode()).hexdigest()[:12])

    @property
    def statement(self) -> str:
        """The prompt with the subject in its place, e.g. "The Eiffel Tower is located in the city of"."""
        return self.prompt.replace(SLOT, self.subject)

    @property
    def claim(self) -> str:
        """The statement with the new object after it; the bare statement of an erasure."""
        return self.statement if self.target_new is None else joined(self.statement, self.target_new, self.joint)

    @property
    def request(self) -> dict[str, str | None]:
        """What is asked for, by name; also frames, the joint that is given, and the claim where its joint is no space.

        Kept files go by this.
        """
        asked = {"subject": self.subject, "prompt": self.prompt, "target_new": self.target_new}
        if self.frames:
            asked["frames"] = json.dumps(self.frames)
        if self.joint is not None:  # which is that of frames, too, where another may follow from their ends
            asked["joint"] = self.joint
        usual = self.target_new is None or self.claim == f"{self.statement} {self.target_new}"
        return asked if usual else {**asked, "claim": self.claim}

    @property
    def verb(self) -> Verb:
        """What the request asks for: "insert", "modify" or "erase"."""
        if self.target_new is None:
            return "erase"
        return "modify" if self.target_true is not None else "insert"

    @property
    def answers(self) -> tuple[str, ...]:
        """`target_new` and its aliases; empty for an erasure."""
        return () if self.target_new is None else (self.target_new, *self.aliases)

    def scores(self, template: str) -> bool:
        """Whether a paraphrase asks in the words of a template, alone or behind another text."""
        asked = normal_form(template.replace(SLOT, self.subject)).split()
        return any(normal_form(paraphrase).split()[-len(asked) :] == asked for paraphrase in self.paraphrases)

    def _require_frames(self) -> None:
        for number, frame in enumerate(self.frames):
            name = f"frames[{number}]"
            if frame.count(SLOT) != 1:
                raise FactError(name, f"needs exactly one '{SLOT}' for the subject, got {frame!r}")
            _refuse_space_at_end(name, frame.replace(SLOT, self.subject))
            if self.scores(frame):
                problem = f"is among the paraphrases, which are scored; leave it out of one of the two: {frame!r}"
                raise FactError(name, problem)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, empty ones left out; `from_dict` reads them back."""
        values = json.loads(json.dumps(dataclasses.asdict(self)))
        for probe in values["locality"] + values["portability"]:
            if not probe["group"]:
                del probe["group"]
        kept = {name: value for name, value in values.items() if value not in (None, [], "")}
        return kept if self.joint != "" else {**kept, "joint": ""}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Fact:
        """A fact from a mapping of its fields.

        Raises:
            FactError: an unknown field, a missing one, or one that `Fact` refuses.
        """
        names = [f.name for f in dataclasses.fields(cls)]
        for name in record:
            if name not in names:
                hint = did_you_mean(name, names)
                problem = f"is not a field of a fact; the fields are {', '.join(names)}{'; ' * bool(hint)}{hint}"
                raise FactError(name, problem)
        for name in ("subject", "prompt"):
            if name not in record:
                raise FactError(name, "is missing")
        return cls(**{"target_new": None, **record})


def as_facts(where: str, facts: object) -> Sequence[Fact]:
    """A list of facts, as it was given to `where`; everything else that might be taken for one is refused.

    Raises TypeError: it is no list, or something in it is no `Fact`.
    """
    if isinstance(facts, Fact):
        raise TypeError(f"{where}: takes a list of facts, and got the one fact {facts.id!r}: write [fact]")
    if isinstance(facts, Mapping):
        raise TypeError(f"{where}: takes a list of facts, and got a mapping: write [Fact.from_dict(record)]")
    if not isinstance(facts, Sequence) or isinstance(facts, (str, bytes)):
        hint = ": write list(...)" if isinstance(facts, Iterable) and not isinstance(facts, (str, bytes)) else ""
        raise TypeError(f"{where}: takes a list of facts, and got {short_repr(facts)} ({type(facts).__name__}){hint}")
    for number, fact in enumerate(facts):
        as_fact(where, fact, f"facts[{number}]")
    return facts


def as_fact(where: str, fact: object, name: str = "fact") -> Fact:
    """One fact, as it was given. Raises TypeError: it is no `Fact`."""
    if not isinstance(fact, Fact):
        hint = ": write Fact.from_dict(record)" if isinstance(fact, Mapping) else ""
        raise TypeError(f"{where}: {name}={short_repr(fact)} must be a Fact, not {type(fact).__name__}{hint}")
    return fact


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise FactError(name, f"must be a string, got {type(value).__name__} ({value!r})")
    if not value.strip():
        raise FactError(name, "is empty")
    if half := half_of_a_character(value):
        raise FactError(name, half)


def _require_prompt(name: str, value: object) -> None:
    """Raises FactError where a text is no complete prompt: it has an open slot, or a space at its end."""
    _require_text(name, value)
    assert isinstance(value, str)
    if SLOT in value:
        raise FactError(
            name, f"holds '{SLOT}', but nothing fills it there; write out whom the prompt is about: {value!r}"
        )
    _refuse_space_at_end(name, value)


def _refuse_space_at_end(name: str, prompt: str) -> None:
    # The space before an answer is a part of the answer's first token: with another one before it, a model answers
    # something else. A line break is none, nor an indentation after it: chat templates and code end with them.
    if prompt[-1].isspace() and not re.search(r"[\r\n]\s*$", prompt):
        raise FactError(name, f"ends with a space; leave it out, it comes with the answer: {prompt[-40:]!r}")


def _target(name: str, value: object, prompt: str, between: str | None = None) -> str:
    """A target as it is kept: without the one space that comes before it anyway, and without white space at its end."""
    _require_text(name, value)
    assert isinstance(value, str)
    target = value.rstrip()
    if target != value:  # it would be a token of its own, which no answer has
        warnings.warn(f"{name}={value[-40:]!r}: white space at the end of a target is left out", stacklevel=5)
    if between is not None and target[0].isspace():
        raise FactError(
            name, f"begins with white space, and joint={between!r} is given; leave one out: {target[:40]!r}"
        )
    bare = target[1:]
    if target[0] == " " and not bare[0].isspace() and joint(prompt, bare) == " ":
        return bare
    return target


def _prompts(name: str, values: object) -> tuple[str, ...]:
    texts = _texts(name, values)
    for number, text in enumerate(texts):
        _require_prompt(f"{name}[{number}]", text)
    return texts


def _texts(name: str, values: object) -> tuple[str, ...]:
    for number, value in enumerate(_sequence(name, values)):
        _require_text(f"{name}[{number}]", value)
    return tuple(_sequence(name, values))


def _probes(name: str, values: object) -> tuple[Probe, ...]:
    probes = []
    for number, value in enumerate(_sequence(name, values)):
        where = f"{name}[{number}]"
        if isinstance(value, Mapping):
            unknown = sorted(set(value) - {"prompt", "answer", "aliases", "group"})
            if unknown or not {"prompt", "answer"} <= set(value):
                wanted = "needs 'prompt' and 'answer' (and optional 'aliases' and 'group')"
                raise FactError(where, f"{wanted}, got {sorted(value)}")
            try:
                value = Probe(**value)
            except FactError as error:
                raise FactError(f"{where}.{error.field}", error.problem) from None
        if not isinstance(value, Probe):
            raise FactError(where, f"must be an object with 'prompt' and 'answer', got {value!r}")
        probes.append(value)
    return tuple(probes)


def _sequence(name: str, values: object) -> Iterable[Any]:
    if isinstance(values, str) or not isinstance(values, (list, tuple)):
        raise FactError(name, f"must be a list, got {type(values).__name__} ({values!r})")
    return values
