"""What is asked of a model when a fact is located in it: the tokens, where the subject is, and which answer counts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.errors import CorrigendaError, UnsupportedModelError
from corrigenda.facts import as_fact
from corrigenda.forward import answering
from corrigenda.forward.recording import forward_logits
from corrigenda.models.alone import one_thread
from corrigenda.prompts import TokenBatch, encode, encode_target, slot_in, subject_span
from corrigenda.settings.checked import Count, check_value
from corrigenda.text.display import quoted

Answer = str | Sequence[int] | None
"""Which answer counts: its text or its tokens; None and "top" as in `ask`."""


Part = Literal["subject", "relation"]
"""Of a prompt's words: the subject's, or all others."""

SPACES = ("▁", "Ġ", " ")
"""What tokenizers call a space that is a token of its own."""
MOST_OF_A_LETTER = 5
"""A letter may be of so many tokens: a space and four bytes."""


class UnknownFactError(CorrigendaError, ValueError):
    """A fact that the model does not know, and that therefore cannot be located in it."""


@dataclass(frozen=True)
class Question:
    """A prompt with the answer whose probability is followed.

    Attributes:
        prompt: the text.
        ids: the prompt's tokens and all of the answer's but the last.
        n_prompt: how many of them are the prompt's.
        subject: the subject's tokens, [first, last + 1); none, (0, 0), of a prompt that was asked alone.
        answer: the answer's text.
        answer_ids: its tokens.
        predicting: the positions whose logits give the answer's tokens, in order.
    """

    prompt: str
    ids: tuple[int, ...]
    n_prompt: int
    subject: tuple[int, int]
    answer: str
    answer_ids: tuple[int, ...]
    predicting: tuple[int, ...]

    def batch(self, lm: LanguageModel, rows: int = 1) -> TokenBatch:
        """The tokens so many times, with where the prompt ends: what is routed by it does not read the answer."""
        return lm.batch([self.ids] * rows, [self.n_prompt] * rows)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The probability of each of the answer's tokens, (row, token), from logits (row * token, vocabulary)."""
        return self.log_probabilities(logits).exp()

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Their logarithms, (row, token)."""
        logs = logits.float().log_softmax(-1).view(-1, len(self.answer_ids), logits.shape[-1])
        wanted = torch.tensor(self.answer_ids, device=logs.device)[None, :, None]
        return logs.gather(2, wanted.expand(len(logs), -1, 1))[..., 0]

    def at(self, rows: int, device: torch.device) -> Tensor:
        """The mask of the predicting positions, (rows, position)."""
        mask = torch.zeros(rows, len(self.ids), dtype=torch.bool, device=device)
        mask[:, list(self.predicting)] = True
        return mask


@one_thread
def ask(lm: LanguageModel, fact: Fact, answer: Answer = None) -> Question:
    """The question whether a causal or masked model knows a fact, whose statement is the prompt.

    A masked model answers at the prompt's mask, and the prompt gets one at its end if it has none. The answer is None
    for the model's own most likely next token, which has to be what the fact's true object begins with (where the fact
    names one); "top" for that token whatever it is; or any text or tokens, all of which then count. Where that token is
    no word yet, a space alone (which many tokenizers put before every number) or a part of a letter, those after it
    count, too. Raises UnknownFactError: the model's answer is not the fact's true object; ContextLengthError: the
    prompt, with the answer, is longer than the model reads; ValueError: the prompt has several masks, or the answer is
    empty.
    """
    as_fact("locating", fact)
    question = ask_prompt(lm, fact.statement, answer, fact.joint, fact)
    if answer is None and fact.target_true is not None:
        _require_known(lm, fact, question)
    return question


@one_thread
def ask_prompt(
    lm: LanguageModel, prompt: str, answer: Answer = None, joint: str | None = None, about: Fact | None = None
) -> Question:
    """The question that a prompt asks; what it raises is as in `ask`.

    Between the prompt and the answer stands the `joint`, by default what follows from its end. The prompt has a subject
    where it is the statement of a fact, which it is `about`.
    """
    check_value("locating", "answer", answer, str | tuple[Count, ...] | None)
    prompt = lm.reads(prompt)
    slot = None if about is None else slot_in(prompt, about.prompt, about.subject)
    masked = not lm.architecture.family.causal
    prompt = answering.with_mask(lm, prompt)
    ids = encode(lm.tokenizer, prompt)
    span = (0, 0) if about is None else subject_span(lm.tokenizer, prompt, about.subject, slot)
    place = answering.position(lm, ids)
    given: list[int] | None = None
    if answer is not None and answer != "top":
        if isinstance(answer, str):
            given = encode_target(lm.tokenizer, answering.before_answer(lm, prompt), answer, joint)
        else:
            given = list(answer)
            if given and max(given) >= lm.model.config.get_text_config().vocab_size:
                raise ValueError(f"locating: answer={given} has a token that {lm.name} does not have")
        if not given:
            raise ValueError(f"the prompt {prompt!r} comes with an answer of no token")
        if masked and len(given) > 1:
            mask = int(lm.tokenizer.mask_token_id)
            ids = ids[:place] + [mask] * len(given) + ids[place + 1 :]
            if place < span[0]:
                span = (span[0] + len(given) - 1, span[1] + len(given) - 1)
    n_prompt = len(ids)
    lm.require_room(n_prompt, f"the prompt {quoted(prompt)}")
    if given is None:
        given = _says(lm, ids, place)
    if not masked:
        ids = ids + given[:-1]
        lm.require_room(len(ids), f"the prompt {quoted(prompt)}")
    return Question(
        prompt=prompt,
        ids=tuple(ids),
        n_prompt=n_prompt,
        subject=span,
        answer=lm.text(given).strip(),
        answer_ids=tuple(given),
        predicting=tuple(range(place, place + len(given))),
    )


def last_of_relation(lm: LanguageModel, question: Question) -> int:
    """The relation's last token: the prompt's last, which stands after the subject (Liu et al. 2024, RETS).

    Raises:
        UnsupportedModelError: the model is a masked one.
        ValueError: the prompt ends with its subject.
    """
    require_relations(lm)
    if question.subject[1] == question.n_prompt:
        raise ValueError(
            f"the prompt {quoted(question.prompt)} ends with its subject, and no token of the relation stands after "
            "it; ask for the subject, or take a prompt that goes on after it"
        )
    return question.n_prompt - 1


def require_relations(lm: LanguageModel) -> None:
    """Refuses a model whose prompts do not end where it answers.

    Raises:
        UnsupportedModelError: the model is a masked one.
    """
    if not lm.architecture.family.causal:
        raise UnsupportedModelError(
            f"tracing a relation is for causal models, and {lm.name} is a masked one: trace its subject"
        )


def require_numbers(lm: LanguageModel, prompt: str, found: Iterable[Tensor]) -> None:
    """Checks that what was found after a prompt is finite, or raises ValueError."""
    if not all(bool(tensor.isfinite().all()) for tensor in found):
        raise ValueError(
            f"{lm.name} gives no numbers (NaN or infinity) after {prompt!r}: nothing can be located; is it "
            "wrecked, or its precision too low?"
        )


@torch.no_grad()
def _says(lm: LanguageModel, ids: list[int], place: int) -> list[int]:
    """The most likely next token; where it is a space alone or a part of a letter, with those after it."""
    found = [_top(lm, ids, place)]
    while lm.architecture.goes_on and len(found) < MOST_OF_A_LETTER and not lm.is_end(found[-1]):
        space = lm.tokenizer.convert_ids_to_tokens(found[-1]) in SPACES
        if not space and not str(lm.tokenizer.decode(found)).endswith("\ufffd"):
            break
        found.append(_top(lm, ids + found, place + len(found)))
    return found


def _top(lm: LanguageModel, ids: list[int], place: int) -> int:
    batch = lm.batch([ids])
    return int(forward_logits(lm, batch, torch.tensor([place], device=batch.lengths.device))[0].argmax())


def _require_known(lm: LanguageModel, fact: Fact, question: Question) -> None:
    assert fact.target_true is not None
    before, says = answering.before_answer(lm, question.prompt), list(question.answer_ids)
    if says != encode_target(lm.tokenizer, before, fact.target_true, fact.joint)[: len(says)]:
        raise UnknownFactError(
            f"{lm.name} does not know that {fact.statement!r} ends in {fact.target_true!r}: it says "
            f"{lm.text(says)!r}; another answer can be traced with answer=..., or 'top' for what it says"
        )
