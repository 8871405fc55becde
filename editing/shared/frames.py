"""Frames: other ways to ask what a fact says, over which an edit is computed besides its prompt.

A value that is solved over one form of a question alone does not carry to others; over some it carries to forms that
are not among them.
"""

import dataclasses
import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from corrigenda import Fact
from corrigenda.data.relations import relations, relations_in, relations_of
from corrigenda.errors import SettingsError
from corrigenda.models.chat import chat_text
from corrigenda.settings.checked import Count, checked


@dataclass(frozen=True)
@checked
class Frames:
    """Which frames a fact has.

    Its own (`Fact.frames`) come first, then the forms of the relation whose form its prompt is, else of the one that it
    names; none where that is several (a Wikidata id may be of a relation and its inverse). A form that a paraphrase of
    the fact has too is left out, since paraphrases are scored.

    Attributes:
        number: so many for a fact at most; 0 for none.
        file: relations and their forms, in the layout of corrigenda/data/relations.txt; None for those that ship.
        chat: whether the prompt as a user's turn of a conversation, in the model's chat template, is one besides these.
    """

    number: Count = 0
    file: str | None = None
    chat: bool = False

    def of(self, fact: Fact) -> tuple[str, ...]:
        """A fact's frames, each with one ``{}`` for the subject. Raises SettingsError: the file cannot be used."""
        if not self.number:
            return ()
        known = relations_of(fact, None if self.file is None else relations_in(self.file))
        # Several kinds may share a Wikidata id, even a relation and its inverse: the prompt says which is meant.
        if asked := [one for one in known if fact.prompt in one.forms]:
            known = tuple(asked)
        elif len({(one.kind, one.answer) for one in known}) > 1:
            known = ()
        forms = [form for one in known for form in one.forms if not fact.scores(form)]
        found = dict.fromkeys(form for form in (*fact.frames, *forms) if form != fact.prompt)
        return tuple(found)[: self.number]

    def with_chat(self, fact: Fact, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
        """The same, after the prompt as a user's turn where that is asked for.

        Raises:
            SettingsError: the file cannot be used; or the tokenizer has no chat template.
        """
        if not self.chat:
            return self.of(fact)
        turn = chat_text(tokenizer, [("user", fact.prompt)])
        if turn is None:
            raise SettingsError("frames.chat=true: the model's tokenizer has no chat template; leave it out")
        return (turn, *self.of(fact))

    @property
    def most(self) -> int:
        """How many a fact has at most."""
        return self.number + self.chat

    @property
    def key(self) -> str:
        """A name for what is kept on disk: equal for equal settings and relations."""
        known = relations() if self.file is None else relations_in(self.file)
        chat = "chat-" if self.chat else ""
        return f"{chat}{self.number}-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}"


NO_FRAMES = Frames()


class Wording(NamedTuple):
    """A fact, with the frame as its prompt, behind one text; prefixes come first among its contexts, then frames."""

    place: int
    prefix: str
    fact: Fact


def wordings(fact: Fact, prefixes: Sequence[str], frames: Frames, tokenizer: PreTrainedTokenizerBase) -> list[Wording]:
    """The fact's prompt behind each prefix, then each of its frames: the first behind the first prefix, and so on.

    Where there are more frames than prefixes these are gone through again.
    """
    own = [Wording(place, prefix, fact) for place, prefix in enumerate(prefixes)]
    asked = (dataclasses.replace(fact, prompt=frame) for frame in frames.with_chat(fact, tokenizer))
    return own + [
        Wording(len(prefixes) + number, prefixes[number % len(prefixes)], one) for number, one in enumerate(asked)
    ]


def warn_of_frames(editor: str, facts: Sequence[Fact], frames: Frames) -> None:
    """Names the facts that have no frame, where there are to be some."""
    lacking = [repr(fact.id) for fact in facts if frames.number and not frames.of(fact)]
    if lacking:
        warnings.warn(
            f"{editor}: frames.number={frames.number}, and no other form is known of these facts, which are edited by "
            f"their prompts alone: {', '.join(lacking)}; give them `frames`, or name their `relation`",
            stacklevel=6,
        )
