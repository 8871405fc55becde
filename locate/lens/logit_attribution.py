"""Direct logit attribution: a logit, or the difference of two, as a sum over everything that the last state is made of.

The final norm is linear once its scale is given, so the logit of a token is the sum over the parts of the last state
of (part through the frozen norm) . U_token, and a constant (Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits"; nostalgebraist 2020). The sum is exact; what it leaves out is what a part does to the scale and
to later layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from corrigenda import LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.models.alone import one_thread
from corrigenda.models.families import name_of
from locate.lens.parts import LayerParts, frozen, parts_of, position_in, rows_of
from locate.lens.words import after_head, final_norm, precision, token_id, token_texts, unembedding
from locate.saving import SavedResult


@dataclass(frozen=True, eq=False)
class LogitAttributionResult(SavedResult, file="logit_attribution"):
    """A logit, or the difference of two, as a sum: ``embedding + attention.sum() + ffn.sum() + constant``.

    Attributes:
        prompt: the text, as the model read it.
        tokens: its tokens as texts.
        position: at which of them the next token is predicted.
        token: the token whose logit it is, as text.
        token_id: its id.
        against: the token whose logit is taken off; None for a plain logit.
        against_id: its id.
        logit: the model's own logit (difference), behind a soft cap where it has one.
        embedding: what the embedding (with positions, where they are added to it) gives.
        constant: what the final norm's shift and the head's bias give, whatever the prompt.
        attention: by layer, (layer,).
        heads: by head, (layer, head); those of a layer and `attention_bias` sum to `attention`. (layer, 0) in a family
            whose heads are not known.
        attention_bias: what is no head's: the output's bias, and the shift of a norm behind it, (layer,).
        ffn: by layer, (layer,).
        neurons: by memory m_i v_i, (layer, d_ffn); those of a layer and `ffn_bias` sum to `ffn`. A layer with fewer
            than the widest is filled with zeros.
        ffn_bias: what is no neuron's, (layer,).
        capped: whether the model puts a soft cap on its logits; the sum is then what the cap is put on.
    """

    prompt: str
    tokens: tuple[str, ...]
    position: int
    token: str
    token_id: int
    against: str | None
    against_id: int | None
    logit: float
    embedding: float
    constant: float
    attention: Tensor
    heads: Tensor
    attention_bias: Tensor
    ffn: Tensor
    neurons: Tensor
    ffn_bias: Tensor
    capped: bool

    @property
    def total(self) -> float:
        """The sum of all parts: the logit (difference), before a soft cap."""
        return self.embedding + self.constant + float(self.attention.sum() + self.ffn.sum())

    @property
    def name(self) -> str:
        """What is attributed, in words."""
        return f"logit of {self.token!r}" + ("" if self.against is None else f" less that of {self.against!r}")

    def top_heads(self, k: int = 10) -> tuple[tuple[int, int, float], ...]:
        """The k heads that count most, by size: layer, head and what each gives."""
        return _largest(self.heads, k)

    def top_neurons(self, k: int = 10) -> tuple[tuple[int, int, float], ...]:
        """The k neurons that count most, by size: layer, number and what each gives."""
        return _largest(self.neurons, k)

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        return {
            "prompt": self.prompt,
            "what": self.name,
            "logit": self.logit,
            "total": self.total,
            "embedding": self.embedding,
            "attention": float(self.attention.sum()),
            "ffn": float(self.ffn.sum()),
            "constant": self.constant,
            "heads": [list(head) for head in self.top_heads()],
            "neurons": [list(neuron) for neuron in self.top_neurons()],
        }

    def table(self) -> Table:
        """A table for a terminal: by layer attention and FFN, with the head and the neuron that count most."""
        title = f"{escape(self.name)} after {escape(repr(self.prompt))}: {self.logit:.3f}"
        table = Table("layer", "attention", "head", "of it", "FFN", "neuron", "of it", title=title)
        table.add_row("embedding", "", "", "", f"{self.embedding:.3f}", "", "")
        for layer in range(len(self.ffn)):
            cells = []
            for whole, parts in ((self.attention, self.heads), (self.ffn, self.neurons)):
                [largest] = _largest(parts[layer][None], 1) or [(0, None, None)]
                cells += [f"{float(whole[layer]):.3f}"]
                cells += ["", ""] if largest[1] is None else [str(largest[1]), f"{largest[2]:.3f}"]
            table.add_row(str(layer), *cells)
        table.add_row("constant", "", "", "", f"{self.constant:.3f}", "", "")
        return table

    def plot(self, path: str | Path) -> None:
        """Draws attention and FFN by layer, and the heads, as PNG, PDF or SVG, by the path's suffix."""
        from locate.lens.pictures import attribution

        attribution(path, self.attention, self.ffn, self.heads, title=f"{self.name}, {self.logit:.2f}")


@one_thread
@torch.no_grad()
def logit_attribution(
    lm: LanguageModel,
    prompt: str,
    token: str | int | None = None,
    against: str | int | None = None,
    position: int = -1,
) -> LogitAttributionResult:
    """What embedding, every head, every FFN and every neuron give to the logit of a token.

    Args:
        lm: a decoder with a final norm; applied edits are part of it.
        prompt: the text.
        token: the token, as text or id; None for the most likely one.
        against: a token whose logit is taken off; None for a plain logit.
        position: after which of the prompt's tokens; negative numbers count from the end.

    Raises:
        UnknownTokenError: a token is not one token of the model.
        UnsupportedModelError: the model is an encoder, has no final norm, or its layers are not the sum of known parts.
        IndexError: the prompt has no such position.
        ContextLengthError: the prompt is longer than the model reads.
        ValueError: the model gives no numbers.
    """
    norm = final_norm(lm)
    if lm.architecture.has_encoder:
        raise UnsupportedModelError(
            f"{name_of(lm.model)} is an encoder-decoder: what attention to the encoder's states gives to a logit is "
            "not counted here; take sub_updates, which looks at the FFNs alone"
        )
    ids = lm.tokens(prompt)
    place = position_in(len(ids), position)
    less = None if against is None else token_id(lm, against)
    wanted = None if token is None else token_id(lm, token)
    parts = parts_of(lm, ids, place)
    chosen = int(parts.logits.argmax()) if wanted is None else wanted
    weight, kind = unembedding(lm), precision(lm)
    at_end = frozen(norm, parts.last.to(lm.dtype))
    slope, capped = after_head(lm)
    u = (weight[chosen].to(kind) - (0 if less is None else weight[less].to(kind))) * slope
    bias = getattr(lm.architecture.head, "bias", None)
    constant = float(at_end.shift @ u)
    if bias is not None:
        constant += slope * float(bias[chosen] - (0 if less is None else bias[less]))
    direction = at_end.pull(u)
    texts = token_texts(lm, [chosen] if less is None else [chosen, less])
    return LogitAttributionResult(
        prompt=lm.reads(prompt),
        tokens=token_texts(lm, ids),
        position=place,
        token=texts[0],
        token_id=chosen,
        against=None if less is None else texts[1],
        against_id=less,
        logit=float(parts.logits[chosen] - (0 if less is None else parts.logits[less])),
        embedding=float(parts.embedding @ direction),
        constant=constant,
        capped=capped,
        **_by_layer(lm, parts.layers, direction),
    )


def _by_layer(lm: LanguageModel, layers: Sequence[LayerParts], direction: Tensor) -> dict[str, Tensor]:
    """What the layers' parts give in a direction of the last state: the tensors of `LogitAttributionResult`."""
    heads, attention, neurons, ffn = [], [], [], []
    for layer, parts in enumerate(layers):
        whole, by_head = _attention(lm, layer, parts, direction)
        attention.append(whole)
        heads.append(by_head)
        before = parts.ffn_direction(direction)
        ffn.append(parts.ffn @ before + (0 if parts.ffn_norm is None else parts.ffn_norm.shift @ direction))
        neurons.append(parts.coefficients * (lm.memory(layer).values.to(before.dtype) @ before))
    by_neuron = pad_sequence(neurons, batch_first=True).cpu()
    by_head, by_attention, by_ffn = (torch.stack(sums).cpu() for sums in (heads, attention, ffn))
    return {
        "attention": by_attention,
        "heads": by_head,
        "attention_bias": by_attention - by_head.sum(1),
        "ffn": by_ffn,
        "neurons": by_neuron,
        "ffn_bias": by_ffn - by_neuron.sum(1),
    }


def _attention(lm: LanguageModel, layer: int, parts: LayerParts, direction: Tensor) -> tuple[Tensor, Tensor]:
    """What a layer's attention gives along a direction of the stream, and what each head does of it, (head,)."""
    before = parts.attention_direction(direction)
    shift = 0 if parts.attention_norm is None else parts.attention_norm.shift @ direction
    whole = parts.attention @ before + shift
    if parts.heads is None:
        return whole, whole.new_zeros(0)
    rows = rows_of(lm.architecture.attention_output(layer)).to(before)
    return whole, (parts.heads * (rows @ before).view_as(parts.heads)).sum(1)


def _largest(parts: Tensor, k: int) -> tuple[tuple[int, int, float], ...]:
    flat = parts.flatten()
    order = flat.abs().topk(min(k, len(flat))).indices.tolist()
    return tuple((*divmod(place, parts.shape[1]), float(flat[place])) for place in order)
