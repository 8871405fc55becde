"""The logit lens: after each layer and at each position of a prompt, what the model would say if it stopped there.

nostalgebraist 2020, "interpreting GPT: the logit lens". With a `JacobianLens` (`locate.lens.jacobian`) a state is first
taken to where the layers above it take it on average, which reads lower layers better.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.alone import one_thread
from corrigenda.models.sites import Site
from corrigenda.text.display import quoted
from locate.lens.words import final_norm, rank_of, read_states, token_id, token_texts
from locate.question import require_numbers
from locate.saving import SavedResult

TENSORS = ("top_ids", "top_probabilities", "probabilities", "ranks")


class Reader(Protocol):
    """Where states are taken before they are read: a `JacobianLens`."""

    def carry(self, states: Tensor, layer: int) -> Tensor:
        """The states after a layer, (..., d_model), as the layers above it leave them on average."""
        ...


@dataclass(frozen=True, eq=False)
class LogitLensResult(SavedResult, file="lens"):
    """What the states of a prompt say, after each layer.

    Attributes:
        prompt: the text, as the model read it.
        tokens: its tokens as texts.
        lens: "logit" or "jacobian".
        token: the token that is followed, as text.
        token_id: its id.
        words: the top token of each cell as text, (layer, position).
        top_ids: its id, (layer, position).
        top_probabilities: its probability, (layer, position).
        probabilities: that of the token which is followed, (layer, position).
        ranks: its rank, 0 for the top, (layer, position).
    """

    prompt: str
    tokens: tuple[str, ...]
    lens: str
    token: str
    token_id: int
    words: tuple[tuple[str, ...], ...]
    top_ids: Tensor
    top_probabilities: Tensor
    probabilities: Tensor
    ranks: Tensor

    @property
    def saturation(self) -> tuple[int, ...]:
        """For each position the first layer from which on its top token is the last layer's."""
        settled = (self.top_ids == self.top_ids[-1]).int().flip(0).cumprod(0).sum(0)
        return tuple((len(self.top_ids) - settled).tolist())

    def summary(self) -> dict[str, Any]:
        """The figures in plain values: the last position, layer by layer."""
        return {
            "prompt": self.prompt,
            "lens": self.lens,
            "token": self.token,
            "saturation": self.saturation[-1],
            "top": [row[-1] for row in self.words],
            "probability": self.probabilities[:, -1].tolist(),
            "rank": self.ranks[:, -1].tolist(),
        }

    def table(self) -> Table:
        """A table for a terminal: at the last position, by layer, the top token and the one that is followed."""
        title = f"{self.lens} lens after {escape(repr(self.prompt))}"
        followed = escape(repr(self.token))
        table = Table("layer", "top token", "probability (%)", f"P({followed}) (%)", "rank", title=title)
        for layer, row in enumerate(self.words):
            figures = (float(part[layer, -1]) for part in (self.top_probabilities, self.probabilities))
            cells = [f"{100 * figure:.1f}" for figure in figures]
            table.add_row(str(layer), escape(repr(row[-1])), *cells, str(int(self.ranks[layer, -1])))
        return table

    def plot(self, path: str | Path) -> None:
        """Draws prompt x layers, the top token in each cell, as PNG, PDF or SVG, by the path's suffix."""
        from locate.lens.pictures import grid_of_words

        layers = range(len(self.words) - 1, -1, -1)  # the last layer at the top
        grid_of_words(
            path,
            [self.words[layer] for layer in layers],
            self.top_probabilities.flip(0),
            self.tokens,
            rows=[str(layer) for layer in layers],
            bar="probability of the top token",
            title=f"{self.lens} lens: the top token after each layer",
        )


@one_thread
@torch.no_grad()
def logit_lens(
    lm: LanguageModel, prompt: str, token: str | int | None = None, reader: Reader | None = None
) -> LogitLensResult:
    """Reads the states of a prompt, after each layer and at each position.

    Of an encoder-decoder these are the decoder's, where the answer begins.

    Args:
        lm: a decoder with a final norm; applied edits are part of it.
        prompt: the text.
        token: which token is followed, as text or id; None for the most likely one after the prompt.
        reader: None for the logit lens; or a `JacobianLens`.

    Raises:
        UnknownTokenError: the token is not one token of the model.
        UnsupportedModelError: the model is an encoder, or has no final norm.
        ContextLengthError: the prompt is longer than the model reads.
        ValueError: the model gives no numbers.
    """
    final_norm(lm)
    ids = lm.tokens(prompt)
    wanted = None if token is None else token_id(lm, token)
    lm.require_room(len(ids), f"the prompt {quoted(prompt)}")
    states, last = states_of(lm, ids)
    wanted = int(last.argmax()) if wanted is None else wanted
    if lm.parts is not None:  # what stands at the encoder's tokens is nobody's
        ids = ids[ids.index(lm.parts.border) :]
        states = [state[-len(ids) :] for state in states]
    found: dict[str, list[Tensor]] = {name: [] for name in TENSORS}
    for layer, state in enumerate(states):
        logits = read_states(lm, state if reader is None else reader.carry(state, layer))
        probabilities = logits.softmax(-1)
        best, top = probabilities.max(-1)
        found["top_ids"].append(top.cpu())
        found["top_probabilities"].append(best.float().cpu())
        found["probabilities"].append(probabilities[:, wanted].float().cpu())
        found["ranks"].append(rank_of(logits, wanted).cpu())
    tensors = {name: torch.stack(parts) for name, parts in found.items()}
    require_numbers(lm, prompt, [tensors["probabilities"]])
    return LogitLensResult(
        prompt=lm.reads(prompt),
        tokens=token_texts(lm, ids),
        lens="logit" if reader is None else "jacobian",
        token=token_texts(lm, [wanted])[0],
        token_id=wanted,
        words=tuple(token_texts(lm, row) for row in tensors["top_ids"].tolist()),
        top_ids=tensors["top_ids"],
        top_probabilities=tensors["top_probabilities"],
        probabilities=tensors["probabilities"],
        ranks=tensors["ranks"],
    )


@torch.no_grad()
def states_of(lm: LanguageModel, ids: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """Runs a prompt once: the residual stream after each layer, (position, d_model), and the last logits."""
    batch = lm.batch([ids])
    with ExitStack() as stack:
        seen = [stack.enter_context(intervene(lm, Site("block", layer), Read())) for layer in range(lm.n_layers)]
        logits = forward_logits(lm, batch, batch.lengths - 1)
    return [one.value[0] for one in seen], logits[0]
