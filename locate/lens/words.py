"""Reading vectors in words: scores over the vocabulary for states of the residual stream, and for static vectors.

A state x is read as the model itself reads its last one, U . norm(x), with the final norm recomputed for each state
(the logit lens, nostalgebraist 2020). A static vector v (a value, a column of an update) has no norm of its own: it is
read as U . (gamma * v), gamma being the norm's weight (Geva et al. 2022, "Transformer Feed-Forward Layers Build
Predictions by Promoting Concepts in the Vocabulary Space", section 3).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corrigenda import LanguageModel
from corrigenda.errors import CorrigendaError, UnsupportedModelError
from corrigenda.forward.recording import stopping, watching
from corrigenda.models.architecture import whole_number
from corrigenda.models.families import name_of
from corrigenda.models.sites import leaving, skipped, state_entering
from corrigenda.prompts import encode_after
from corrigenda.text.display import quoted, unspaced

ROWS = 256
"""States that are read at once; what is needed for them beside the result is (256, vocabulary)."""
COLUMNS = 8192
"""Tokens of the vocabulary for which static vectors are scored at once."""
LARGE = 1024.0
"""What a norm is tried with: so large that the small number it adds to the variance does not count."""


class UnknownTokenError(CorrigendaError, ValueError):
    """A text that is not one token of the model."""


# -- vectors to scores


@torch.no_grad()
def read_states(lm: LanguageModel, states: Tensor) -> Tensor:
    """What a decoder would say if a state were its last one: U . norm(x), by the model's own last modules.

    From states (..., d_model) logits, (..., vocabulary), float32 (float64 of a float64 model), on the model's device.
    The final norm, the unembedding and whatever follows it in the family (a bias, a scale, a soft cap) are the model's
    own, so that the softmax of the last layer's states is the model's own distribution. Raises UnsupportedModelError:
    the model is an encoder, or has no final norm; ValueError: the states are not as wide as the model.
    """
    norm = final_norm(lm)
    require_width(lm, states)
    flat = states.reshape(-1, states.shape[-1])
    tuples = blocks_return_tuples(lm)
    found = [
        _own_logits(lm, norm, flat[begin : begin + ROWS].to(lm.dtype), tuples) for begin in range(0, len(flat), ROWS)
    ]
    logits = torch.cat(found) if found else flat.new_zeros(0, unembedding(lm).shape[0], dtype=precision(lm))
    return logits.reshape(*states.shape[:-1], logits.shape[-1])


@torch.no_grad()
def read_static(lm: LanguageModel, vectors: Tensor) -> Tensor:
    """How much a vector that joins the residual stream promotes each token: U . (gamma * v).

    From values or columns of an update, (..., d_model), scores, (..., vocabulary), float32 (float64 of a float64
    model), on the model's device. Nothing is normalised, and there is no bias, no scale and no soft cap: twice the
    vector is twice the scores. Nor is there a norm that the family has behind the FFN: a value's vector is read as if
    it joined the stream itself. Raises UnsupportedModelError: the model is an encoder, or has no final norm;
    ValueError: the vectors are not as wide as the model.
    """
    norm = final_norm(lm)
    require_width(lm, vectors)
    weight, kind = unembedding(lm), precision(lm)
    gamma = norm_weight(norm, vectors.shape[-1]).to(weight.device, kind)
    flat = vectors.reshape(-1, vectors.shape[-1]).to(weight.device, kind) * gamma
    if weight.dtype == kind:
        return (flat @ weight.T).reshape(*vectors.shape[:-1], len(weight))
    scores = torch.empty(len(flat), len(weight), dtype=kind, device=weight.device)
    for begin in range(0, len(weight), COLUMNS):  # U as a whole in another precision would be as large as itself again
        scores[:, begin : begin + COLUMNS] = flat @ weight[begin : begin + COLUMNS].to(kind).T
    return scores.reshape(*vectors.shape[:-1], len(weight))


# -- scores to words


@dataclass(frozen=True)
class Words:
    """Some tokens of the vocabulary with their texts and scores (of any kind), the first one first."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    scores: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def __str__(self) -> str:
        return ", ".join(repr(text) for text in self.texts)


def top(lm: LanguageModel, scores: Tensor, k: int = 10) -> Words:
    """The k tokens that score highest, (vocabulary,), the highest first; all, where there are fewer.

    Raises:
        ValueError: there is more than one row of scores, or k is below 1.
    """
    if scores.ndim != 1:
        raise ValueError(f"top and bottom tokens are of one row of scores, (vocabulary,), not {tuple(scores.shape)}")
    if k < 1:
        raise ValueError(f"k={k} tokens cannot be named; ask for at least one")
    best, ids = scores.topk(min(k, len(scores)))
    found = tuple(ids.tolist())
    return Words(found, token_texts(lm, found), tuple(best.tolist()))


def bottom(lm: LanguageModel, scores: Tensor, k: int = 10) -> Words:
    """The k tokens that score lowest, the lowest first; otherwise as `top`."""
    lowest = top(lm, -scores, k)
    return Words(lowest.ids, lowest.texts, tuple(-score for score in lowest.scores))


def rank_of(scores: Tensor, token: int | Tensor) -> Tensor:
    """At which rank a token stands, (...): how many tokens score higher, 0 for the top one; ties are to its favour.

    Scores are (..., vocabulary); the token is an id, or one for each row, (...).
    """
    wanted = torch.as_tensor(token, device=scores.device).expand(scores.shape[:-1])[..., None]
    return (scores > scores.gather(-1, wanted)).sum(-1)


def token_texts(lm: LanguageModel, ids: Sequence[int]) -> tuple[str, ...]:
    """The texts of single tokens, each with the space before it that it has."""
    return tuple(str(lm.tokenizer.decode([token])) for token in ids)


def token_id(lm: LanguageModel, token: str | int) -> int:
    """The one token that is meant by an id, or a text with or without the space before it.

    A word without the space is taken as it stands after other words, with the space, where that is one token. Raises
    UnknownTokenError: the model has no such token, or the text is of several tokens.
    """
    if not isinstance(token, str):
        number, size = whole_number(token, "a token"), len(unembedding(lm))
        if not 0 <= number < size:
            raise UnknownTokenError(f"{lm.name} has no token {number}: its tokens are 0 to {size - 1}")
        return number
    word = token.strip(" ")
    if not token:
        raise UnknownTokenError("an empty text is no token; name one of the vocabulary")
    spaced = [f" {word}", word]
    ways = spaced if token.startswith(" ") or (word[:1].isalnum() and not unspaced(word[0])) else spaced[::-1]
    tried = [encode_after(lm.tokenizer, "\n", way) for way in (ways if word else [token])]
    for ids in tried:
        if len(ids) == 1 and ids[0] != lm.tokenizer.unk_token_id:
            return ids[0]
    parts = token_texts(lm, tried[0])
    if len(parts) < 2:
        raise UnknownTokenError(f"{lm.name} does not know the token {quoted(token)}; name one of its vocabulary")
    raise UnknownTokenError(
        f"{quoted(token)} is {len(parts)} tokens of {lm.name} ({', '.join(map(repr, parts))}), and one is asked "
        "for; name one of them"
    )


# -- the model's last modules


def final_norm(lm: LanguageModel) -> nn.Module:
    """The norm before the unembedding. Raises UnsupportedModelError: the model is an encoder, or has none."""
    if not lm.architecture.family.causal:
        raise UnsupportedModelError(
            f"{name_of(lm.model)} is an encoder: its states are not read in words; take a causal language model"
        )
    norm = lm.architecture.final_norm
    if norm is None:
        raise UnsupportedModelError(
            f"{name_of(lm.model)} has no final norm that is known, so its states cannot be read in words; if it has "
            "one, give its path as `final_norm` of a `Family` (load(..., family=Family(...)))"
        )
    return norm


def unembedding(lm: LanguageModel) -> Tensor:
    """U, (vocabulary, d_model): a view of the weights.

    Raises:
        UnsupportedModelError: the head is not one matrix from the width of the model.
    """
    head = lm.architecture.head
    weight = getattr(head, "weight", None)
    width = lm.memory(0).d_model
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.shape[1] != width:
        raise UnsupportedModelError(
            f"{name_of(lm.model)}: its head ({type(head).__name__}) is not one matrix from the width {width} of its "
            "residual stream to the vocabulary, so vectors cannot be read in words"
        )
    return weight.detach()


def norm_weight(norm: nn.Module, width: int) -> Tensor:
    """gamma, (d_model,): what a norm multiplies each dimension by, whatever it keeps it as (Gemma: 1 + weight).

    Found by trying the norm: of x = +-c in turn the mean is 0 and the root mean square c, so that for a LayerNorm and
    for an RMSNorm norm(x) = gamma * x / c + beta. float32 (float64 of a float64 model).

    Raises:
        UnsupportedModelError: the width is odd, so that there is no such x.
    """
    if width % 2:
        raise UnsupportedModelError(f"a norm of the odd width {width} is not supported; the widths of models are even")
    parameter = next(norm.parameters(), torch.empty(0))
    kind = parameter.dtype if parameter.is_floating_point() else torch.float32
    signs = torch.ones(width, dtype=kind, device=parameter.device)
    signs[1::2] = -1
    with torch.no_grad():
        difference = norm(LARGE * signs).to(precision_of(kind)) - norm(-LARGE * signs).to(precision_of(kind))
    return difference / 2 * signs


def require_width(lm: LanguageModel, vectors: Tensor) -> None:
    """Checks that vectors are as wide as the residual stream, or raises ValueError."""
    width = lm.memory(0).d_model
    if vectors.ndim < 1 or vectors.shape[-1] != width:
        raise ValueError(f"vectors of the shape {tuple(vectors.shape)} are not of {lm.name}, whose width is {width}")


def precision(lm: LanguageModel) -> torch.dtype:
    """In which precision scores are: float32, or float64 for a float64 model."""
    return precision_of(lm.dtype)


def precision_of(kind: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for all below."""
    return torch.float64 if kind == torch.float64 else torch.float32


@torch.no_grad()
def after_head(lm: LanguageModel) -> tuple[float, bool]:
    """What the model does to its head's scores: the factor it multiplies small ones by, and whether it caps large ones.

    Seen by giving the model scores in place of its head's: a scale (Cohere, Granite) multiplies all of them, a soft cap
    (Gemma 2) leaves small ones as they are and bounds large ones.
    """
    kind = lm.dtype if precision(lm) == lm.dtype else torch.float32

    def given(score: float) -> float:
        with leaving(lm.architecture.head, lambda scores: torch.full_like(scores, score, dtype=kind)):
            return float(lm.model(**_one_token_each(lm, 1)).logits[0, 0, 0])

    with skipped(lm.architecture.skippable, blocks_return_tuples(lm)):
        small, large = given(2.0**-10), given(2.0**10)
    slope = small * 2**10
    return slope, large < slope * 2**10 * 0.99


def blocks_return_tuples(lm: LanguageModel) -> bool:
    """Whether this model's blocks return their state in a tuple; seen in a forward of one token."""
    with torch.no_grad(), watching(lm, ()) as watched, stopping(lm, 0):
        lm.model(**_one_token_each(lm, 1))
    return watched.tuples


def _own_logits(lm: LanguageModel, norm: nn.Module, states: Tensor, tuples: bool) -> Tensor:
    """The model's logits where its blocks are skipped and states, (n, d_model), enter its final norm."""
    with ExitStack() as stack:
        stack.enter_context(skipped(lm.architecture.skippable, tuples))
        stack.enter_context(state_entering(norm, lambda state: states[:, None].to(state.device)))
        return lm.model(**_one_token_each(lm, len(states))).logits[:, 0].to(precision(lm))


def _one_token_each(lm: LanguageModel, n: int) -> dict[str, Tensor | bool]:
    """A call of the model with n rows of one token: which token does not matter."""
    ids = torch.tensor([lm.least] * n, device=lm.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
