"""Tokens of prompts, the subject's and the target's positions, and batches of both.

Batches are padded on the right, so that a token's position is its index and padding cannot change a causal model's
other positions. (Generation, which appends, pads on the left: see `generation.py`.)
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from corrigenda.errors import ContextLengthError
from corrigenda.text.display import quoted
from corrigenda.text.joints import joined

MOST_TARGET_TOKENS = 256
"""Longer targets are refused: each token takes logits as wide as the vocabulary, in every context of an edit."""


ANSWER_BEGINS = "_answer_begins"
"""The attribute of an encoder-decoder's tokenizer with what follows a prompt's own tokens; see
`corrigenda.models.encoder_decoder`."""

ENDS_PROMPT = "_ends_prompt"
"""The attribute of a causal model's tokenizer with the tokens that it puts after every text: no prompt ends in them."""


@dataclass(frozen=True)
class TokenBatch:
    """Token sequences padded on the right.

    Attributes:
        input_ids: (batch, position).
        lengths: (batch,), the number of real tokens in each row.
        prompts: (batch,), how many of them are the prompt, on which routed edits (`corrigenda.edits.routed`) decide;
            the rest is a continuation. By default all.
    """

    input_ids: Tensor
    lengths: Tensor
    prompts: Tensor | None = None

    @property
    def attention_mask(self) -> Tensor:
        """(batch, position), 1 for real tokens."""
        return (torch.arange(self.input_ids.shape[1], device=self.lengths.device) < self.lengths[:, None]).long()

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def rows(self, rows: Tensor) -> TokenBatch:
        """The named rows, cut to the longest of them."""
        lengths = self.lengths[rows]
        prompts = None if self.prompts is None else self.prompts[rows]
        return TokenBatch(self.input_ids[rows, : int(lengths.max())], lengths, prompts)


def pad(
    sequences: Sequence[Sequence[int]],
    pad_id: int,
    device: torch.device | str = "cpu",
    prompts: Sequence[int] | None = None,
) -> TokenBatch:
    """A batch of token sequences of any lengths; `prompts` says how many tokens of each are its prompt.

    Raises:
        ValueError: no sequence, or an empty one.
    """
    if not sequences or any(len(sequence) == 0 for sequence in sequences):
        raise ValueError("a batch needs at least one sequence, and every sequence at least one token")
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    ids = torch.full((len(sequences), int(lengths.max())), pad_id, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.as_tensor(sequence)
    return TokenBatch(ids.to(device), lengths.to(device), None if prompts is None else torch.tensor(prompts).to(device))


def goes_on(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer of a causal model, by which `encode` leaves a prompt open: without an end token behind it.

    Tokenizers that were saved after fine-tuning often put one behind every text (``add_eos_token``).
    """
    ids, plain = tokenizer("a")["input_ids"], encode_plain(tokenizer, "a")
    behind = len(ids) - len(plain) - (specials_before(tokenizer, "a") if plain else 0)
    if not behind or not plain:
        return tokenizer
    tokenizer = copy.copy(tokenizer)
    setattr(tokenizer, ENDS_PROMPT, tuple(ids[-behind:]))
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """The tokens of a prompt, with the special tokens that stand before it (a BOS where the model has one).

    A prompt that begins with its BOS (chat templates write one) gets no second one. Of a causal model nothing stands
    after it; of an encoder-decoder what its answer begins with.

    Raises:
        TypeError: it is no text.
        ValueError: the prompt has no token.
    """
    if not isinstance(prompt, str):
        raise TypeError(f"a prompt must be a text, not {type(prompt).__name__} ({quoted(repr(prompt))})")
    ids: list[int] = tokenizer(prompt)["input_ids"]
    behind = getattr(tokenizer, ENDS_PROMPT, ())
    if behind and tuple(ids[-len(behind) :]) == behind:
        ids = ids[: -len(behind)]
    ids = ids[_second_opening(tokenizer, prompt, ids) :]
    if not ids:
        raise ValueError(f"the prompt {prompt!r} has no token")
    return [*ids, *getattr(tokenizer, ANSWER_BEGINS, ())]


def _second_opening(tokenizer: PreTrainedTokenizerBase, prompt: str, ids: Sequence[int]) -> int:
    """How many special tokens (a BOS) the tokenizer puts before a prompt that begins with them itself."""
    twice = [n for n in range(1, 4) if ids[:n] == ids[n : 2 * n]]
    own = encode_plain(tokenizer, prompt) if twice else []
    return next((n for n in twice if ids[n : n + len(own)] == own and ids[:n] == own[:n]), 0)


def encode_target(
    tokenizer: PreTrainedTokenizerBase, prompt: str, target: str, between: str | None = None
) -> list[int]:
    """The tokens of `target` as they follow `prompt`, with what stands `between` them (`joints.joined`).

    The prompt and its continuation are tokenised as one text and the prompt's tokens taken off, so that a
    tokenizer that puts a token before every text (SentencePiece's dummy prefix, a BOS) adds nothing to the target.
    Where a tokenizer merges across the border, the target has the tokens that it has after a line break or a full stop:
    a model goes on from the prompt's own tokens. In an encoder-decoder the target follows nothing: it begins the
    decoder's own text.

    Raises:
        ContextLengthError: the target has more than `MOST_TARGET_TOKENS` tokens.
        TypeError: it is no text.
        ValueError: the target is empty.
    """
    if not isinstance(target, str):
        raise TypeError(f"a target must be a text, not {type(target).__name__} ({quoted(repr(target))})")
    if not target.strip():
        raise ValueError(f"empty target for the prompt {quoted(prompt)}")
    if hasattr(tokenizer, ANSWER_BEGINS):
        ids = encode_plain(tokenizer, (between or "") + re.sub(r"^ (?=\S)", "", target))
    else:
        if between is None and prompt.endswith(tuple(tokenizer.all_special_tokens)):
            between = ""  # a template's last token is followed by the answer itself
        ids = encode_after(tokenizer, prompt, joined(prompt, target, between)[len(prompt) :])
    if len(ids) > MOST_TARGET_TOKENS:
        raise ContextLengthError(
            f"the target {quoted(target)} has {len(ids)} tokens, and a target has at most {MOST_TARGET_TOKENS}; "
            "shorten it",
            len(ids),
            MOST_TARGET_TOKENS,
        )
    return ids


def first_word(tokenizer: PreTrainedTokenizerBase, target: Sequence[int]) -> int:
    """The place of a target's first token that is no space alone, which some tokenizers put before every number."""
    return next((n for n, token in enumerate(target) if str(tokenizer.decode([token])).strip()), 0)


def encode_after(tokenizer: PreTrainedTokenizerBase, prompt: str, text: str) -> list[int]:
    """The tokens of a text behind a prompt, or where these have merged behind a line break or a full stop."""
    for before in (prompt, "\n", "."):
        first, whole = encode_plain(tokenizer, before), encode_plain(tokenizer, before + text)
        if (first or not before) and len(whole) > len(first) and whole[: len(first)] == first:
            return whole[len(first) :]
    return encode_plain(tokenizer, text)


def encode_plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a text without any special token."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def subject_span(
    tokenizer: PreTrainedTokenizerBase, prompt: str, subject: str, begin: int | None = None
) -> tuple[int, int]:
    """The tokens [first, last + 1) of a prompt that cover its subject, at the character `begin` or where it is last.

    Raises ValueError: the subject does not stand there, or has no token.
    """
    begin = prompt.rfind(subject) if begin is None else begin
    if begin < 0 or not prompt.startswith(subject.rstrip(), begin):
        raise ValueError(f"the subject {subject!r} does not stand in the prompt {prompt!r}")
    end = begin + len(subject.rstrip())
    if tokenizer.is_fast:
        offsets = tokenizer(prompt, return_offsets_mapping=True)["offset_mapping"]
        covering = [i for i, (left, right) in enumerate(offsets) if left < end and right > begin and right > left]
        if covering:
            left_out = _second_opening(tokenizer, prompt, tokenizer(prompt)["input_ids"])
            return covering[0] - left_out, covering[-1] + 1 - left_out
    # Without offsets: the tokenised beginnings of the prompt that reach the subject and its end.
    before = specials_before(tokenizer, prompt)
    left, whole = encode_plain(tokenizer, prompt[:begin].rstrip()), encode_plain(tokenizer, prompt[:end])
    if left == whole:
        raise ValueError(f"the subject {subject!r} has no token in {prompt!r}: the tokenizer leaves it out")
    return before + min(len(left), len(whole) - 1), before + len(whole)  # it may end within a token that began before


def put_before(tokenizer: PreTrainedTokenizerBase, text: str, prompt: str) -> str:
    """A text before a prompt; behind the BOS, where the prompt begins with the one that stands before every text."""
    opening = str(tokenizer.decode(specials(tokenizer))) if text else ""
    if opening and prompt.startswith(opening):
        return opening + text.removeprefix(opening) + prompt[len(opening) :]
    return text + prompt


def filled_span(tokenizer: PreTrainedTokenizerBase, text: str, template: str, subject: str) -> tuple[int, int]:
    """The subject's tokens, as `subject_span` gives them, in a text that ends with a template, filled."""
    return subject_span(tokenizer, text, subject, slot_in(text, template, subject))


def slot_in(text: str, template: str, subject: str) -> int:
    """Where, in characters, the ``{}`` of a template lies in a text that ends with the template, filled."""
    return len(text) - len(template.replace("{}", subject)) + template.index("{}")


def specials(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The special tokens that the tokenizer puts before a text."""
    return encode(tokenizer, "a")[: specials_before(tokenizer, "a")]


def specials_before(tokenizer: PreTrainedTokenizerBase, prompt: str) -> int:
    """The number of special tokens that the tokenizer puts before a prompt (it may put others behind it)."""
    whole, plain = encode(tokenizer, prompt), encode_plain(tokenizer, prompt)
    places = range(len(whole) - len(plain) + 1)
    return next((place for place in places if whole[place : place + len(plain)] == plain), 0)


def shared_heads(
    sequences: Sequence[Sequence[int]], limits: Sequence[int]
) -> tuple[list[list[int]], list[int], list[int]]:
    """What several sequences begin with in common, so that it need be run only once.

    Neighbours in lexicographic order are put together as long as that shares more tokens than leaving them apart; of
    each at most so many first tokens as `limits` says. The heads (none if nothing is shared); and for each sequence
    which head is its, and how many of its first tokens that head gives (0 for sequences that share nothing).
    """
    order = sorted(range(len(sequences)), key=lambda i: list(sequences[i]))
    groups: list[tuple[list[int], int]] = []  # members, tokens in common
    for i in order:
        if groups:
            members, common = groups[-1]
            together = _common(sequences[members[0]], sequences[i], min(common, limits[i]))
            if together * len(members) > 0 and together * len(members) >= common * (len(members) - 1):
                groups[-1] = ([*members, i], together)
                continue
        groups.append(([i], limits[i]))
    heads: list[list[int]] = []
    head_of, lengths = [0] * len(sequences), [0] * len(sequences)
    for members, common in groups:
        if len(members) == 1:
            continue
        for i in members:
            head_of[i], lengths[i] = len(heads), common
        heads.append(list(sequences[members[0]][:common]))
    return heads, head_of, lengths


def in_common(sequences: Sequence[Sequence[int]], limit: int) -> int:
    """How many first tokens all of some sequences share, at most `limit`."""
    for other in sequences[1:]:
        limit = _common(sequences[0], other, limit)
    return limit


def _common(left: Sequence[int], right: Sequence[int], limit: int) -> int:
    """How many first tokens two sequences share, at most `limit`."""
    for place in range(min(limit, len(left), len(right))):
        if left[place] != right[place]:
            return place
    return min(limit, len(left), len(right))
