"""How a model applies a function to an argument, and its FFNs' updates carried into other prompts.

Merullo, Eickhoff and Pavlick 2024, "Language Models Implement Simple Word2Vec-style Vector Arithmetic". In a prompt
such as "the capital of Poland is" the states where the answer is predicted, read in words layer by layer, first say the
argument (Poland) and later the answer (Warsaw). In between an FFN adds an update that stands for the function: added in
another prompt that ends with another argument, it makes that one's answer.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Add, Read, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record
from corrigenda.models.alone import one_thread
from corrigenda.models.sites import Site, SiteName
from corrigenda.prompts import encode
from corrigenda.settings.checked import check_value
from corrigenda.text.display import quoted
from locate.lens.words import final_norm, rank_of, read_states, token_id, token_texts
from locate.question import require_numbers
from locate.saving import SavedResult


@dataclass(frozen=True, eq=False)
class EarlyDecoding(SavedResult, file="early"):
    """What the states at a prompt's last token say, layer by layer.

    Attributes:
        prompt: the prompt, as the model read it.
        names: what is followed: "argument" and "answer", say.
        tokens: their tokens' texts.
        top: the top token after each layer.
        ranks: the rank of each one's token, 0 for the top, (name, layer).
        probabilities: its probability, (name, layer).
    """

    prompt: str
    names: tuple[str, ...]
    tokens: tuple[str, ...]
    top: tuple[str, ...]
    ranks: Tensor
    probabilities: Tensor

    def best_layer(self, name: str) -> int:
        """The layer after which a token stands highest; the lowest of several.

        Raises:
            ValueError: nothing of that name is followed.
        """
        if name not in self.names:
            raise ValueError(f"{name!r} is not followed; what is: {', '.join(self.names) or 'nothing'}")
        return int(self.ranks[self.names.index(name)].argmin())

    def summary(self) -> dict[str, Any]:
        """The figures in plain values: for each name the layer after which its token stands highest, and how high."""
        return {
            "prompt": self.prompt,
            "top": list(self.top),
            "names": {
                name: {"token": token, "layer": self.best_layer(name), "rank": int(ranks.min())}
                for name, token, ranks in zip(self.names, self.tokens, self.ranks, strict=True)
            },
        }

    def table(self) -> Table:
        """A table for a terminal: the top token and the ranks, layer by layer."""
        table = Table("layer", "top", *map(escape, self.names), title=escape(quoted(self.prompt)))
        for layer, word in enumerate(self.top):
            table.add_row(str(layer), escape(repr(word)), *(str(int(rank)) for rank in self.ranks[:, layer]))
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the ranks by layer as PNG, PDF or SVG, by the path's suffix."""
        from locate.flow.pictures import ranks_by_layer

        ranks = {
            f"{name} ({token.strip()})": row
            for name, token, row in zip(self.names, self.tokens, self.ranks, strict=True)
        }
        ranks_by_layer(path, ranks, "what is followed", None, self.prompt)


@one_thread
@torch.no_grad()
def decode_early(lm: LanguageModel, prompt: str, tokens: Mapping[str, str | int]) -> EarlyDecoding:
    """Reads the states at a prompt's last token in words, after each layer, and follows tokens there, by name.

    Raises UnknownTokenError: a text is not one token (`locate.lens.words.token_id`); UnsupportedModelError: the model's
    states cannot be read in words; ValueError: the model gives no numbers.
    """
    wanted = torch.tensor([token_id(lm, token) for token in tokens.values()], dtype=torch.long)
    states = _at_last(lm, prompt, "block")
    scores = read_states(lm, states)
    probabilities = scores.softmax(-1)
    require_numbers(lm, prompt, [probabilities])
    ranks = [rank_of(scores, token) for token in wanted.tolist()]
    top = scores.argmax(-1).tolist()
    return EarlyDecoding(
        prompt=lm.reads(prompt),
        names=tuple(tokens),
        tokens=token_texts(lm, wanted.tolist()),
        top=token_texts(lm, top),
        ranks=torch.stack(ranks).cpu() if ranks else torch.zeros(0, lm.n_layers, dtype=torch.long),
        probabilities=probabilities[:, wanted.to(scores.device)].T.cpu(),
    )


@dataclass(frozen=True, eq=False)
class Transplant(SavedResult, file="transplant"):
    """What the FFN's update of one prompt does in another, layer by layer.

    Attributes:
        source: the prompt whose updates are taken, at its last token.
        target: the prompt into which they are put, at its last token.
        how: "add": added to the FFN's own output; "replace": put in its place.
        token: the token that is followed.
        before: its probability after the target prompt.
        rank_before: its rank there; 0 is the top.
        probabilities: its probability with the update of each layer transplanted, (layer,).
        ranks: its rank then, (layer,).
        top: the top token then, by layer.
    """

    source: str
    target: str
    how: str
    token: str
    before: float
    rank_before: int
    probabilities: Tensor
    ranks: Tensor
    top: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """The figures in plain values: the layer whose update makes the token most likely."""
        layer = int(self.probabilities.argmax())
        return {
            "source": self.source,
            "target": self.target,
            "how": self.how,
            "token": self.token,
            "before": self.before,
            "rank_before": self.rank_before,
            "layer": layer,
            "after": float(self.probabilities[layer]),
            "rank_after": int(self.ranks[layer]),
        }

    def table(self) -> Table:
        """A table for a terminal: the probability and the rank, layer by layer."""
        title = f"{escape(repr(self.token))}: {100 * self.before:.2f} % and rank {self.rank_before} before"
        table = Table("layer of the update", "P (%)", "rank", "top", title=title)
        for layer, word in enumerate(self.top):
            rank = str(int(self.ranks[layer]))
            table.add_row(str(layer), f"{100 * float(self.probabilities[layer]):.2f}", rank, escape(repr(word)))
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the token's rank by the layer whose update was transplanted, as PNG, PDF or SVG."""
        from locate.flow.pictures import ranks_by_layer

        title = f"updates of {quoted(self.source, 30)} in {quoted(self.target, 30)}"
        ranks_by_layer(path, {"with the layer's update": self.ranks}, self.token, None, title)


@one_thread
@torch.no_grad()
def transplant(
    lm: LanguageModel, source: str, target: str, token: str | int, how: Literal["add", "replace"] = "add"
) -> Transplant:
    """Puts what each layer's FFN says at one prompt's last token into another's, one layer at a time.

    At the end of the source the function is applied ("the capital of Poland is"); the target ends with another
    argument, and does not ask for it; the token is what the function would make of that argument. `how` as in
    `Transplant`. Only the target's last position runs again, for all layers at once. Raises UnknownTokenError: the
    token's text is not one token; UnsupportedModelError: the model is an encoder, or has no final norm; ValueError: it
    gives no numbers.
    """
    check_value("transplant", "how", how, Literal["add", "replace"])
    final_norm(lm)
    number = token_id(lm, token)
    updates = _at_last(lm, source, "ffn")
    if how == "replace":
        updates = updates - _at_last(lm, target, "ffn")
    ids = encode(lm.tokenizer, lm.reads(target))
    batch = lm.batch([ids])
    device, depth = batch.lengths.device, lm.n_layers
    last = torch.tensor([len(ids) - 1], device=device)
    recording = record(lm, batch, [0], last, anew=True)
    assert recording.logits is not None
    rows = torch.zeros(depth, dtype=torch.long, device=device)
    partial = PartialForward(lm, recording, 0, last.expand(depth), rows)
    logits = _each_layer_once(lm, partial, updates, last.expand(depth))
    before, after = recording.logits.float(), logits.float()
    probabilities = after.softmax(-1)[:, number].cpu()
    require_numbers(lm, target, [before.softmax(-1), probabilities])
    return Transplant(
        source=lm.reads(source),
        target=lm.reads(target),
        how=how,
        token=token_texts(lm, [number])[0],
        before=float(before.softmax(-1)[0, number]),
        rank_before=int(rank_of(before, number)),
        probabilities=probabilities,
        ranks=rank_of(after, number).cpu(),
        top=token_texts(lm, after.argmax(-1).tolist()),
    )


def _each_layer_once(lm: LanguageModel, partial: PartialForward, updates: Tensor, last: Tensor) -> Tensor:
    """The logits (layer, vocabulary) of rows in each of which one layer's FFN output has its update added."""
    at = partial.local(last)
    with ExitStack() as stack:
        for layer, update in enumerate(updates):
            delta = torch.zeros(len(updates), updates.shape[1], dtype=updates.dtype, device=updates.device)
            delta[layer] = update
            stack.enter_context(intervene(lm, Site("ffn", layer), Add(delta), at))
        return partial.logits(at)


def _at_last(lm: LanguageModel, prompt: str, site: SiteName) -> Tensor:
    """What is at a site of every layer at a prompt's last token, (layer, d_model)."""
    batch = lm.batch([encode(lm.tokenizer, lm.reads(prompt))])
    at = batch.lengths - 1
    with ExitStack() as stack:
        seen = [stack.enter_context(intervene(lm, Site(site, layer), Read(), at)) for layer in range(lm.n_layers)]
        forward_logits(lm, batch, at)
    return torch.cat([each.value for each in seen])
