"""What a model gives to windows of held-out texts, and whether an edit that routes answered in them.

Three texts ship with the project: prose, code and dialogue, the last in the model's chat template where it has one.
They are cut into windows of equal numbers of tokens that do not overlap. Each window is a prompt of its own, so that an
edit that routes decides on each by itself. On one long text it would decide once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from corrigenda import ContextLengthError, LanguageModel
from corrigenda.data.embedded import dialogues, held_out_texts
from corrigenda.edits.routed import activated
from corrigenda.forward.shared import SharedStart
from corrigenda.prompts import encode_plain, specials_before
from eval.scoring import MOST_LOGITS, batches
from eval.settings import EvalSettings

logger = logging.getLogger(__name__)

MOST_LOG_PERPLEXITY = 700.0
"""Beyond that exp overflows; such a model is wrecked all the same."""


@dataclass(frozen=True)
class HeldOut:
    """What a model gave to windows of the held-out texts.

    Attributes:
        windows: their numbers; window k is of text k modulo the number of texts.
        log_probs: for each the sum of its tokens' log-probabilities, in nats.
        tokens: for each, how many tokens that are; a window's first token is read and not predicted.
        activated: for each, whether an applied edit answered in it; None where no applied edit is routed.
    """

    windows: tuple[int, ...]
    log_probs: tuple[float, ...]
    tokens: tuple[int, ...]
    activated: tuple[bool, ...] | None = None

    @property
    def log_perplexity(self) -> float:
        """The mean negative log-probability of a token, in nats."""
        return -sum(self.log_probs) / sum(self.tokens)

    def by_window(self) -> dict[int, float]:
        """By window the mean negative log-probability of its tokens, in nats."""
        parts = zip(self.windows, self.log_probs, self.tokens, strict=True)
        return {window: -log_prob / n for window, log_prob, n in parts}

    def only(self, windows: Sequence[int]) -> HeldOut:
        """Some of the windows, in that order; those that were not read are left out."""
        place = {window: number for number, window in enumerate(self.windows)}
        kept = [place[window] for window in windows if window in place]
        return HeldOut(
            tuple(self.windows[number] for number in kept),
            tuple(self.log_probs[number] for number in kept),
            tuple(self.tokens[number] for number in kept),
            None if self.activated is None else tuple(self.activated[number] for number in kept),
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields that are known, as JSON values: what runs keep."""
        found: dict[str, Any] = {
            "windows": list(self.windows),
            "log_probs": [value if math.isfinite(value) else None for value in self.log_probs],
            "tokens": list(self.tokens),
        }
        return found if self.activated is None else found | {"activated": list(self.activated)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> HeldOut:
        """What an object holds that `to_dict` gave.

        Raises:
            ValueError: its lists are not of one length, or empty, or a window has no token.
        """
        log_probs = tuple(math.nan if value is None else float(value) for value in record["log_probs"])
        windows, tokens, answers = tuple(record["windows"]), tuple(record["tokens"]), record.get("activated")
        lengths = {len(windows), len(log_probs), len(tokens), len(windows if answers is None else answers)}
        if len(lengths) > 1 or not windows or min(tokens) < 1:
            raise ValueError(
                "held_out: windows, log_probs, tokens and activated must be lists of one length, not empty"
            )
        return cls(windows, log_probs, tokens, None if answers is None else tuple(map(bool, answers)))


def in_turn(place: int, settings: EvalSettings) -> tuple[int, ...]:
    """The windows that are read after the edit of one fact of many, each fact in a model of its own.

    `perplexity_sample` of them, going on where the fact before ended: as windows take the texts in turn, so do these,
    and the facts together read all windows equally often.
    """
    n = settings.perplexity_windows
    return tuple(
        (place * settings.perplexity_sample + number) % n for number in range(min(settings.perplexity_sample, n))
    )


@torch.no_grad()
def read_held_out(lm: LanguageModel, settings: EvalSettings, windows: Sequence[int] | None = None) -> HeldOut | None:
    """What the model, with whatever edits are applied, gives to windows of the held-out texts.

    The text that context edits put before a prompt is read before each window; its own tokens do not count.

    Args:
        lm: a causal model.
        settings: how many windows there are, and of how many tokens.
        windows: the numbers of those wanted; by default all.

    Returns:
        None where no window is asked for, or where the text of context edits leaves no room for one (a warning says
        so): a perplexity of shorter windows could not be compared.

    Raises:
        ContextLengthError: the model does not read two tokens.
        ValueError: a text is too short for so many windows.
    """
    wanted = range(settings.perplexity_windows) if windows is None else windows
    if not wanted:
        return None
    texts = held_out_windows(lm, settings)
    start = _before_windows(lm)
    rows = [start + texts[number] for number in wanted]
    try:
        lm.require_room(len(rows[0]), "a window of the held-out texts, with what is put before it,")
    except ContextLengthError as error:
        logger.warning("%s: the perplexity is not measured", error)
        return None
    shared = SharedStart(lm, rows)
    n, width = len(texts[0]) - 1, len(rows[0])
    at_once = max(1, MOST_LOGITS // 4 // (n * len(lm.tokenizer)))
    sums = [0.0] * len(rows)
    answers: list[bool | None] = [None] * len(rows)
    weight = shared.weight(width)
    for group in batches(range(len(rows)), [weight] * len(rows), min(settings.max_tokens, at_once * weight)):
        batch = lm.batch([rows[number] for number in group])
        at = torch.zeros(batch.input_ids.shape, dtype=torch.bool, device=batch.lengths.device)
        at[:, len(start) : -1] = True
        with activated(lm) as seen:
            logits = shared.logits(batch, at).float()
        follow = batch.input_ids[:, len(start) + 1 :].reshape(-1, 1)
        logs = logits.gather(1, follow)[:, 0].double() - logits.logsumexp(-1).double()
        for place, number in enumerate(group):
            total = float(logs[place * n : (place + 1) * n].sum())
            # To six digits, as it is written: what goes on from a file is then what was measured.
            sums[number] = round(max(total, -MOST_LOG_PERPLEXITY * n), 6)
            answers[number] = seen.rows[place] if seen.rows else None
    known = [answer for answer in answers if answer is not None]
    found = tuple(known) if len(known) == len(rows) else None
    return HeldOut(tuple(wanted), tuple(sums), (n,) * len(rows), found)


def held_out_windows(lm: LanguageModel, settings: EvalSettings) -> list[list[int]]:
    """The tokens of all windows, in the order of their numbers: the texts' first windows, then their second, ...

    They are the same whatever edits are applied. In a model that reads fewer tokens than a window has, windows are as
    long as it reads.

    Raises:
        ContextLengthError: the model does not read two tokens.
        ValueError: a text is too short for so many windows.
    """
    width = settings.perplexity_window
    specials = len(_specials(lm))
    lm.require_room(specials + 2, "a window of two tokens")
    if lm.context_length is not None:
        width = min(width, lm.context_length - specials)
    texts = held_out_texts()
    cut: list[list[list[int]]] = []
    for place, (kind, text) in enumerate(texts.items()):
        ids = encode_plain(lm.tokenizer, _in_template(lm, text) if kind == "dialogue" else text)
        needed = len(range(place, settings.perplexity_windows, len(texts)))
        if len(ids) // width < needed:
            raise ValueError(
                f"the held-out text {kind!r} has {len(ids)} tokens, too few for {needed} windows of {width}: lower "
                f"eval.perplexity_windows={settings.perplexity_windows} or "
                f"eval.perplexity_window={settings.perplexity_window}"
            )
        cut.append([ids[begin : begin + width] for begin in range(0, needed * width, width)])
    return [cut[number % len(cut)][number // len(cut)] for number in range(settings.perplexity_windows)]


def _in_template(lm: LanguageModel, text: str) -> str:
    """A text of dialogues as the model's chat template writes it; as it is where the model has none."""
    if not getattr(lm.tokenizer, "chat_template", None):
        return text
    # Some templates write today's date where none is given.
    template: dict[str, Any] = {"tokenize": False, "date_string": "01 Jan 2025"}
    return "".join(str(lm.tokenizer.apply_chat_template(turns, **template)) for turns in dialogues(text))


def _specials(lm: LanguageModel) -> list[int]:
    """The special tokens that the tokenizer puts before a text."""
    found: list[int] = lm.tokenizer("a")["input_ids"]
    return found[: specials_before(lm.tokenizer, "a")]


def _before_windows(lm: LanguageModel) -> list[int]:
    """The tokens that stand before each window: special ones, and the text of context edits."""
    context = lm.edits.context
    return _specials(lm) + (encode_plain(lm.tokenizer, context) if context else [])
