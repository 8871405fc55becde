"""What a model gives to windows of held-out texts, and whether an edit that routes answered in them.

Three texts ship with the project: prose, code and dialogue, the last in the model's chat template where it has one.
They are cut into windows of equal numbers of tokens that do not overlap, each a prompt of its own.
"""

import logging
from collections.abc import Sequence

import torch

from corrigenda import ContextLengthError, LanguageModel
from corrigenda.data.embedded import dialogues, held_out_texts
from corrigenda.edits.routed import activated
from corrigenda.forward.shared import SharedStart
from corrigenda.models.chat import chat_text
from corrigenda.prompts import encode_plain, specials
from eval.measurement import HeldOut
from eval.scoring.probabilities import MOST_LOGITS, batches
from eval.settings import EvalSettings

logger = logging.getLogger(__name__)

MOST_LOG_PERPLEXITY = 700.0
"""Beyond that exp overflows; such a model is wrecked all the same."""


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
    """What the model, with whatever edits are applied, gives to windows of the held-out texts, by default all.

    The text that edits put before a prompt is read before each window; its own tokens do not count. None where no
    window is asked for, of an encoder-decoder, or where the text of edits leaves no room for one (a warning says so): a
    perplexity of shorter windows could not be compared. Raises ContextLengthError: the model does not read two tokens;
    ValueError: a text is too short for so many windows.
    """
    wanted = range(settings.perplexity_windows) if windows is None else windows
    if not wanted or lm.architecture.has_encoder:  # it has no probability of running text
        return None
    texts = held_out_windows(lm, settings)
    starts = [_before_window(lm, texts[number]) for number in wanted]
    rows = [start + texts[number] for start, number in zip(starts, wanted, strict=True)]
    longest = max(map(len, rows))
    try:
        lm.require_room(longest, "a window of the held-out texts, with what is put before it,")
    except ContextLengthError as error:
        logger.warning("%s: the perplexity is not measured", error)
        return None
    shared = SharedStart(lm, rows)
    n = len(texts[0]) - 1
    at_once = max(1, MOST_LOGITS // 4 // (n * len(lm.tokenizer)))
    sums = [0.0] * len(rows)
    answers: list[bool | None] = [None] * len(rows)
    weight = shared.weight(longest)
    for group in batches(range(len(rows)), [weight] * len(rows), min(settings.max_tokens, at_once * weight)):
        batch = lm.batch([rows[number] for number in group])
        at = torch.zeros(batch.input_ids.shape, dtype=torch.bool, device=batch.lengths.device)
        for row, number in enumerate(group):
            at[row, len(starts[number]) : len(rows[number]) - 1] = True
        with activated(lm) as seen:
            logits = shared.logits(batch, at).float()
        follow = batch.input_ids.roll(-1, 1)[at][:, None]
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
    before = len(specials(lm.tokenizer))
    lm.require_room(before + 2, "a window of two tokens")
    if lm.context_length is not None:
        width = min(width, lm.context_length - before)
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
    """A text of dialogues as the model's chat template writes it; as it is where the model has none.

    Without what the tokenizer puts before any text, which some templates write, too: it stands before each window
    anyway, and within one before every further dialogue, where no text of a conversation has it.
    """
    opening = str(lm.tokenizer.decode(specials(lm.tokenizer)))
    conversations = [[(turn["role"], turn["content"]) for turn in turns] for turns in dialogues(text)]
    found = [chat_text(lm.tokenizer, turns, answer=False) for turns in conversations]
    return text if None in found else "".join(str(one).removeprefix(opening) for one in found)


def _before_window(lm: LanguageModel, window: Sequence[int]) -> list[int]:
    """The tokens that stand before a window: special ones, and the text of edits."""
    context = lm.edits.before(lm.text(window))
    return specials(lm.tokenizer) + (encode_plain(lm.tokenizer, context) if context else [])
