"""Sub-updates: what the FFN of each layer adds at one position, as a sum over memories m_i v_i, in words.

Which sub-updates are dominant (by |m_i| |v_i|), what each of them promotes, and how the whole layer promotes and
eliminates one token: the static score of a sub-update is m_i (U_token . v_i), and those above zero promote it (Geva et
al. 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the Vocabulary Space", sections
3 to 5). The final norm's gamma is part of U here; its scale, the same for all, is not. A norm behind the FFN (Gemma 2
and 3, OLMo 2) is, as it was at this position.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.models.alone import one_thread
from locate.lens.parts import Decomposition, LayerParts, parts_of, position_in
from locate.lens.words import (
    Words,
    bottom,
    final_norm,
    norm_weight,
    precision,
    rank_of,
    read_states,
    read_static,
    token_id,
    token_texts,
    top,
    unembedding,
)
from locate.saving import SavedResult


@dataclass(frozen=True, eq=False)
class SubUpdatesResult(SavedResult, file="sub_updates"):
    """The updates of all layers at one position, taken apart.

    Attributes:
        prompt: the text, as the model read it.
        tokens: its tokens as texts.
        position: at which of them.
        token: the token that is followed, as text.
        token_id: its id.
        dominant: the neurons whose sub-updates are largest, the largest first, (layer, k).
        coefficients: their m_i, (layer, k).
        sizes: their |m_i| |v_i|, (layer, k).
        scores: how much each promotes the token: m_i (gamma U_token . v_i), (layer, k).
        share: what share of the sum of all |m_i| |v_i| of a layer is theirs, (layer,).
        promotion: the sum of the scores above zero, of all sub-updates of a layer, (layer,).
        elimination: the sum of those below zero, (layer,).
        top_ids: the top token after each layer, by the logit lens, (layer,).
        ranks: the rank of the token that is followed there, (layer,).
        promoted: the top tokens of each dominant sub-update m_i v_i, (layer, k).
        eliminated: the bottom ones, (layer, k).
        top_tokens: the texts of `top_ids`, (layer,).
    """

    prompt: str
    tokens: tuple[str, ...]
    position: int
    token: str
    token_id: int
    dominant: Tensor
    coefficients: Tensor
    sizes: Tensor
    scores: Tensor
    share: Tensor
    promotion: Tensor
    elimination: Tensor
    top_ids: Tensor
    ranks: Tensor
    promoted: tuple[tuple[Words, ...], ...]
    eliminated: tuple[tuple[Words, ...], ...]
    top_tokens: tuple[str, ...]

    @property
    def saturation(self) -> int:
        """The first layer from which on the top token is the last layer's: the saturation event."""
        return saturation_of(self.top_ids)

    @property
    def net(self) -> Tensor:
        """Promotion and elimination together, (layer,): what the FFN's memories do for the token."""
        return self.promotion + self.elimination

    def summary(self) -> dict[str, Any]:
        """The figures in plain values: the saturation event, and each layer's dominant sub-update."""
        event = self.saturation
        return {
            "prompt": self.prompt,
            "token": self.token,
            "saturation": event,
            "promotion_there": float(self.promotion[event]),
            "elimination_there": float(self.elimination[event]),
            "layers": [
                {
                    "layer": layer,
                    "says": self.top_tokens[layer],
                    "neuron": int(self.dominant[layer, 0]),
                    "coefficient": float(self.coefficients[layer, 0]),
                    "share": float(self.share[layer]),
                    "promotes": list(self.promoted[layer][0].texts),
                    "promotion": float(self.promotion[layer]),
                    "elimination": float(self.elimination[layer]),
                }
                for layer in range(len(self.top_tokens))
            ],
        }

    def table(self) -> Table:
        """A table for a terminal: by layer the dominant sub-update in words, promotion and elimination."""
        title = f"sub-updates after {escape(repr(self.prompt))}: for {escape(repr(self.token))}"
        table = Table("layer", "says", "neuron", "m", "promotes", "promotion", "elimination", title=title)
        for one in self.summary()["layers"]:
            mark = "*" if one["layer"] == self.saturation else ""
            words = ", ".join(map(repr, one["promotes"][:5]))
            figures = (f"{one['promotion']:.2f}", f"{one['elimination']:.2f}")
            cells = (escape(repr(one["says"])), str(one["neuron"]), f"{one['coefficient']:.2f}", escape(words))
            table.add_row(f"{one['layer']}{mark}", *cells, *figures)
        return table

    def plot(self, path: str | Path) -> None:
        """Draws promotion and elimination by layer, with the saturation event, as PNG, PDF or SVG."""
        from locate.lens.pictures import promotion

        promotion(path, self.promotion, self.elimination, self.saturation, title=f"{self.token!r} after {self.prompt}")


@one_thread
@torch.no_grad()
def sub_updates(
    lm: LanguageModel,
    prompt: str,
    position: int = -1,
    token: str | int | None = None,
    k: int = 10,
    words: int = 10,
) -> SubUpdatesResult:
    """Takes the FFN updates of a prompt apart, at one position.

    Args:
        lm: a decoder with a final norm; applied edits are part of it.
        prompt: the text.
        position: which of its tokens; negative numbers count from the end.
        token: which token is followed, as text or id; None for the most likely one.
        k: how many dominant sub-updates of each layer.
        words: how many tokens of each.

    Raises:
        UnknownTokenError: the token is not one token of the model.
        UnsupportedModelError: the model is an encoder, has no final norm, or its layers are not the sum of known parts.
        IndexError: the prompt has no such position.
        ValueError: k or words is below 1, or the model gives no numbers.
    """
    final_norm(lm)
    if k < 1 or words < 1:
        raise ValueError(f"k={k} sub-updates of words={words} tokens cannot be shown; both must be at least 1")
    ids = lm.tokens(prompt)
    place = position_in(len(ids), position)
    wanted = None if token is None else token_id(lm, token)
    parts = parts_of(lm, ids, place)
    wanted = int(parts.logits.argmax()) if wanted is None else wanted
    u = token_direction(lm, wanted)
    rows, promoted, eliminated = [], [], []
    for layer, of_layer in enumerate(parts.layers):
        row = _dominant(lm, layer, of_layer, u, k)
        values = lm.memory(layer).values[row["dominant"]]
        read = read_static(lm, _behind(of_layer, row["coefficients"][:, None] * values.to(row["coefficients"])))
        rows.append(row)
        promoted.append(tuple(top(lm, each, words) for each in read))
        eliminated.append(tuple(bottom(lm, each, words) for each in read))
    logits = read_states(lm, _states(parts))
    tensors = {name: torch.stack([row[name] for row in rows]).cpu() for name in rows[0]}
    tensors |= {"top_ids": logits.argmax(-1).cpu(), "ranks": rank_of(logits, wanted).cpu()}
    return SubUpdatesResult(
        prompt=lm.reads(prompt),
        tokens=token_texts(lm, ids),
        position=place,
        token=token_texts(lm, [wanted])[0],
        token_id=wanted,
        **tensors,
        promoted=tuple(promoted),
        eliminated=tuple(eliminated),
        top_tokens=token_texts(lm, tensors["top_ids"].tolist()),
    )


def _dominant(lm: LanguageModel, layer: int, parts: LayerParts, direction: Tensor, k: int) -> dict[str, Tensor]:
    """The k sub-updates of a layer that are largest, and what all of them give in a direction."""
    sizes, scores = scores_of(lm, layer, parts, direction)
    best, which = sizes.topk(min(k, len(sizes)))
    return {
        "dominant": which,
        "coefficients": parts.coefficients[which],
        "sizes": best,
        "scores": scores[which],
        "share": best.sum() / sizes.sum().clamp_min(torch.finfo(sizes.dtype).tiny),  # of a layer that says nothing: 0
        "promotion": scores.clamp(min=0).sum(),
        "elimination": scores.clamp(max=0).sum(),
    }


def token_direction(lm: LanguageModel, token: int) -> Tensor:
    """Gamma U_token, (d_model,): the static score of a vector is its product with this.

    Raises:
        UnsupportedModelError: the model is an encoder, or has no final norm.
    """
    u = unembedding(lm)[token].to(precision(lm))
    return u * norm_weight(final_norm(lm), len(u)).to(u)


def scores_of(
    lm: LanguageModel, layer: int, parts: LayerParts, direction: Tensor, norms: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Of a layer's sub-updates m_i v_i the sizes |m_i| |v_i| and the static scores along a direction, both (d_ffn,).

    The parts are the layer's at a position, the direction, (d_model,), is of the residual stream; `norms` are |v_i|,
    (d_ffn,), where they are known already.
    """
    values = lm.memory(layer).values.to(direction)
    norms = values.norm(dim=1) if norms is None else norms
    return parts.coefficients.abs() * norms, parts.coefficients * (values @ parts.ffn_direction(direction))


def saturation_of(tops: Tensor) -> int:
    """The first layer from which on the top token, (layer,), is the last layer's."""
    settled = (tops == tops[-1]).int().flip(0).cumprod(0).sum()
    return len(tops) - int(settled)


def _states(parts: Decomposition) -> Tensor:
    """What stands behind each layer, (layer, d_model)."""
    return torch.stack([one.after for one in parts.layers])


def _behind(parts: LayerParts, updates: Tensor) -> Tensor:
    """Sub-updates, (n, d_model), as they join the residual stream."""
    norm = parts.ffn_norm
    if norm is None:
        return updates
    return norm.gain * (updates - updates.mean(-1, keepdim=True) if norm.centres else updates)
