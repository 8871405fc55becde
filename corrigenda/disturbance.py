"""What an edit does to everything else, at a glance: a few plain texts are run before and after, when it is made."""

import dataclasses
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corrigenda.data.requests import left_out
from corrigenda.edits.context import TextEdit
from corrigenda.edits.edit import Edit
from corrigenda.errors import WrongModelError
from corrigenda.forward.recording import forward_logits
from corrigenda.language_model import LanguageModel
from corrigenda.prompts import encode

TEXTS = (
    "The bus was late again, so we walked home along the river and talked about our plans for the summer.",
    "To make the soup, cut two onions into small pieces and cook them in a little oil until they are soft.",
    "When the price of a product rises, people usually buy less of it and look for something cheaper.",
)
"""Plain texts whose perplexity is looked at."""

PROMPTS = (
    "The river Rhine flows through the city of",
    "Marie Curie was born in the country of",
    "The native language of the painter is",
    "My sister plays the piano, and my brother plays the",
    "The company has its headquarters in",
    "He worked for many years as a",
)
"""The beginnings of sentences whose next token is looked at."""

MOST_NATS = 0.5
"""The bound on the rise of the log-perplexity of `TEXTS`: ROME's edit of 100 CounterFact facts in SmolLM2 has 0.22, the
most of the ordinary edits that were looked at, and the mildest of those that wrecked a model 2.7."""
MOST_KL = 2.0
"""The bound on the mean KL divergence, in nats, of the next token of `PROMPTS`: 1.0 and 4.5 of the same edits."""


class DisturbanceWarning(UserWarning):
    """An edit changes other texts beyond a bound; as an error (`warnings.simplefilter`) it refuses such edits."""


@dataclass(frozen=True)
class Disturbance:
    """How far an edit moves other texts.

    Attributes:
        nats: by how much the log-perplexity of `TEXTS` rises; None of an encoder-decoder, which gives no text a
            probability.
        kl: the mean of KL(before, after) of the next token's distribution over `PROMPTS`, in nats.
    """

    nats: float | None
    kl: float

    @property
    def beyond(self) -> bool:
        """Whether a bound is passed, or a figure is not finite."""
        return not ((self.nats or 0.0) <= MOST_NATS and self.kl <= MOST_KL)

    def report(self) -> dict[str, Any]:
        """For an edit's report; a figure that is not finite is absent."""
        figures = {"nats": self.nats, "kl": self.kl}
        finite = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
        return {"disturbance": finite | {"beyond": self.beyond}}

    def __str__(self) -> str:
        moved = (
            f"the next token of sentences about other things moves by a KL of {self.kl:.3g} nats (bound {MOST_KL:g})"
        )
        if self.nats is None:
            return moved
        return f"the log-perplexity of plain texts rises by {self.nats:.3g} nats (bound {MOST_NATS:g}) and {moved}"


def noted(lm: LanguageModel, edit: Edit, n_facts: int) -> Edit:
    """An edit with its disturbance in the reports of its last `n_facts`, and a warning where that is beyond a bound.

    The model is without the edit. An edit that puts a text before prompts (`TextEdit`) changes no model and stays as it
    is. Raises DisturbanceWarning: where the caller has made it an error.
    """
    if isinstance(edit, TextEdit):
        return edit
    found, origin = disturbance(lm, edit), edit.origin
    if found.beyond:
        warnings.warn(f"{origin.editor}: the edit disturbs other texts: {found}", DisturbanceWarning, stacklevel=3)
    reports = [*origin.report, *({} for _ in origin.facts[len(origin.report) :])]
    new = len(reports) - n_facts
    said = tuple(
        one if number < new or "refused" in one or left_out(one) else one | found.report()
        for number, one in enumerate(reports)
    )
    return dataclasses.replace(edit, origin=dataclasses.replace(origin, report=said))


def known(edit: Edit, n_facts: int | None = None) -> Disturbance | None:
    """What was found of an edit when it was made; None where nobody looked.

    With `n_facts` of its last facts alone: of the others an earlier edit was looked at.
    """
    begin = 0 if n_facts is None else max(len(edit.origin.facts) - n_facts, 0)
    for report in reversed(edit.origin.report[begin:]):
        if said := report.get("disturbance"):
            return Disturbance(said.get("nats", math.nan if said["beyond"] else None), said.get("kl", math.nan))
    return None


def disturbance(lm: LanguageModel, edit: Edit) -> Disturbance:
    """How far an edit moves other texts, on the model as it is."""
    before = _before(lm)
    with edit.applied(lm):
        after = _seen(lm)
    kl = (before[1].exp() * (before[1] - after[1])).sum(1).mean()
    return Disturbance(None if before[0] is None or after[0] is None else float(after[0] - before[0]), float(kl))


def _before(lm: LanguageModel) -> tuple[Tensor | None, Tensor]:
    """`_seen`, once for all edits that are made on the model as it is."""
    try:
        state = f"{lm.cache_key} {lm.edits.content_hash()} {lm.device}"
    except WrongModelError:  # changed by hand: it has no name to be known by
        return _seen(lm)
    if lm.looked_at is None or lm.looked_at[0] != state:
        lm.looked_at = (state, _seen(lm))
    return lm.looked_at[1]


@torch.no_grad()
def _seen(lm: LanguageModel) -> tuple[Tensor | None, Tensor]:
    """The mean of -log P of the texts' tokens, and log P of all tokens after the prompts, (prompt, vocabulary)."""
    read = ((), PROMPTS) if lm.parts is not None else (TEXTS, PROMPTS)
    texts, prompts = ([encode(lm.tokenizer, text)[: lm.context_length] for text in part] for part in read)
    batch = lm.batch([*texts, *prompts])
    at = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    for row, length in enumerate(batch.lengths.tolist()):
        at[row, 0 if row < len(texts) else length - 1 : length - (row < len(texts))] = True
    log_probs = forward_logits(lm, batch, at).log_softmax(-1, dtype=torch.float32)
    if not texts:
        return None, log_probs
    n = int(at[: len(texts)].sum())
    targets = batch.input_ids.roll(-1, 1)[: len(texts)][at[: len(texts)]]
    return -log_probs[:n].gather(1, targets[:, None].to(log_probs.device)).mean(), log_probs[n:]
