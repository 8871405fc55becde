"""Trigger examples: for every neuron the prefixes of a text at which its coefficient is largest.

A key is a pattern that some texts fit; the texts at which its coefficient is largest show which (Geva et al. 2021,
"Transformer Feed-Forward Layers Are Key-Value Memories", section 3). Coefficients of a gated network are of either
sign, so there the size counts; the coefficient keeps its sign, with which the value is then read.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.interventions import Apply, intervene
from corrigenda.forward.recording import forward_to
from corrigenda.models.alone import one_thread
from corrigenda.models.families import name_of
from corrigenda.models.sites import Site
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, check_value
from corrigenda.system.files import cache_folder, read_kept, write_checked
from corrigenda.system.progress import track
from locate.lens.by_layer import Curves, Mean, mean_of, plot_curves, table_of
from locate.lens.largest import Largest
from locate.saving import SavedResult

TOKENS = 2048
"""So many tokens are run at once."""
CHECKPOINT = 16
"""Batches after which what was found so far is written down."""
FIRST = 1
"""The first position whose prefix counts. At position 0 there is nothing to attend to but itself, and the states of
most models are extreme there, whatever the token is (Xiao et al. 2024, "Efficient Streaming Language Models with
Attention Sinks"): it would be the trigger of many neurons, and say nothing of them."""


@dataclass(frozen=True)
class Example:
    """A prefix that triggers a neuron.

    Attributes:
        prefix: the text up to and with the token at which the coefficient was taken.
        next_token: the token after it, as text.
        coefficient: m of the neuron at the last token of the prefix.
        text: the number of the text that the prefix begins.
        position: of the prefix's last token in it.
    """

    prefix: str
    next_token: str
    coefficient: float
    text: int
    position: int


@dataclass(frozen=True, eq=False)
class Triggers(SavedResult, file="triggers"):
    """The t prefixes with the largest coefficients for every neuron of every layer.

    Attributes:
        signed: whether coefficients are of either sign, and the prefixes ordered by their size (gated networks).
        source: which text: the key of its `corrigenda.moments.text.Text`.
        coefficients: m, (layer, neuron, t), the largest first.
        prefixes: (layer, neuron, t), int32: the number of the prefix's last token in the whole text.
        tokens: the text, (text, position), int32.
    """

    signed: bool
    source: str
    coefficients: Tensor
    prefixes: Tensor
    tokens: Tensor

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return self.coefficients.shape[0]

    @property
    def texts(self) -> Tensor:
        """The numbers of the prefixes' texts, (layer, neuron, t)."""
        return self.prefixes // self.tokens.shape[1]

    @property
    def positions(self) -> Tensor:
        """The positions of the prefixes' last tokens in their texts, (layer, neuron, t)."""
        return self.prefixes % self.tokens.shape[1]

    @property
    def last_tokens(self) -> Tensor:
        """The prefixes' last tokens, (layer, neuron, t)."""
        return self.tokens.flatten()[self.prefixes.long()]

    @property
    def next_tokens(self) -> Tensor:
        """The tokens that follow the prefixes in the text, (layer, neuron, t)."""
        return self.tokens.flatten()[self.prefixes.long() + 1]

    def ids(self, layer: int, neuron: int, rank: int = 0) -> list[int]:
        """The tokens of a prefix; rank 0 is that with the largest coefficient.

        Raises:
            IndexError: there is no such layer, neuron or rank.
        """
        prefix = int(self.prefixes[layer, neuron, rank])
        text, position = divmod(prefix, self.tokens.shape[1])
        ids: list[int] = self.tokens[text, : position + 1].tolist()
        return ids

    @one_thread
    def examples(self, lm: LanguageModel, layer: int, neuron: int) -> list[Example]:
        """A neuron's triggers as texts, that with the largest coefficient first; negative layers count from the end.

        Raises IndexError: there is no such layer or neuron.
        """
        layer, neuron = lm.memory(layer).place(neuron)
        return [
            Example(
                prefix=str(lm.tokenizer.decode(self.ids(layer, neuron, rank))),
                next_token=str(lm.tokenizer.decode([int(self.next_tokens[layer, neuron, rank])])),
                coefficient=float(self.coefficients[layer, neuron, rank]),
                text=int(self.texts[layer, neuron, rank]),
                position=int(self.positions[layer, neuron, rank]),
            )
            for rank in range(self.prefixes.shape[2])
        ]

    # -- shallow patterns

    @cached_property
    def same_last_token(self) -> tuple[Mean, ...]:
        """For each layer the share of a neuron's triggers that end in the commonest of their last tokens.

        The mean over neurons, with an interval over them. It is 1 where every neuron answers to one token, whatever
        stands before it: the shallowest pattern. (Geva et al. 2021 had people find the patterns, figure 2.)
        """
        found = [mean_of(_commonest(of_layer).tolist(), shares=True) for of_layer in self.last_tokens]
        return tuple(mean for mean in found if mean is not None)

    @cached_property
    def same_last_token_by_chance(self) -> float:
        """The same share for neurons that answer to nothing: as many prefixes each, drawn at random from the text."""
        n_texts, length = self.tokens.shape
        generator = torch.Generator().manual_seed(0)
        shape = (1000, self.prefixes.shape[2])
        texts = torch.randint(n_texts, shape, generator=generator)
        positions = torch.randint(FIRST, length - 1, shape, generator=generator)
        return float(_commonest(self.tokens[texts, positions]).mean())

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        return {
            "text": self.source,
            "tokens": self.tokens.numel(),
            "neurons": self.coefficients.shape[0] * self.coefficients.shape[1],
            "triggers_per_neuron": self.coefficients.shape[2],
            "signed": self.signed,
            "same_last_token": {str(layer): mean.summary() for layer, mean in enumerate(self.same_last_token)},
            "same_last_token_by_chance": self.same_last_token_by_chance,
        }

    def table(self) -> Table:
        """A table for a terminal: by layer how many of a neuron's triggers end in one token."""
        title = f"{self.coefficients.shape[2]} triggers a neuron, {self.tokens.numel():,} tokens; {self._chance}"
        return table_of(title, range(self.n_layers), {"same last token (%)": self.same_last_token}, percent=True)

    def plot(self, path: str | Path) -> None:
        """Draws by layer how many of a neuron's triggers end in one token; PNG, PDF or SVG, by the path's suffix."""
        chance = [self.same_last_token_by_chance] * self.n_layers
        curves: Curves = {"triggers": self.same_last_token, "chance": chance}
        title = f"{self.coefficients.shape[2]} triggers a neuron, {self.tokens.numel():,} tokens of text"
        plot_curves(
            path, range(self.n_layers), curves, label="triggers with the same last token", title=title, percent=True
        )

    @property
    def _chance(self) -> str:
        return f"by chance {100 * self.same_last_token_by_chance:.1f} % end in the same token"

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What is kept of it, by field."""
        return {name: getattr(self, name) for name in ("coefficients", "prefixes", "tokens")}


def _commonest(tokens: Tensor) -> Tensor:
    """For each row (n, t) of tokens the share of the commonest one, (n,)."""
    return (tokens[:, :, None] == tokens[:, None, :]).sum(-1).amax(-1) / tokens.shape[1]


@one_thread
def trigger_examples(lm: LanguageModel, text: Text | None = None, t: int = 25) -> Triggers:
    """The t trigger examples of each neuron of the unedited model, taken from the disk, or found in one pass and kept.

    What was found so far is written down now and then, and a pass that was cut short goes on from there, to the same
    bits. Beside the text, by default 8,192 tokens of the one that ships, memory holds t coefficients and numbers of
    each neuron. A prefix is the beginning of one of the text's sequences, of two tokens at least (see `FIRST`), that
    has a next token in it. Raises UnsupportedModelError: the model is an encoder, or its layers have different numbers
    of neurons; ValueError: the text has fewer than t prefixes; or as `Text.sequences` says.
    """
    text = (text or Text()).fitting(lm)
    t = check_value("trigger_examples", "t", t, AtLeastOne)
    require_prefixes(lm)
    widths = {lm.memory(layer).d_ffn for layer in range(lm.n_layers)}
    if len(widths) > 1:
        raise UnsupportedModelError(
            f"{name_of(lm.model)}: its layers have different numbers of neurons ({', '.join(map(str, sorted(widths)))})"
        )
    path = cache_folder() / "triggers" / f"{lm.cache_key}-{text.key(lm)}-top{t}.safetensors"
    known = read_kept(path, "the triggers are searched for again")
    if known is not None:
        tensors, said = known
        return Triggers(signed=json.loads(said["signed"]), source=text.key(lm), **tensors)
    part = path.with_suffix(".part")
    with lm.edits.suspended():
        found = _search(lm, text, t, part)
    write_checked(path, found.tensors, {"signed": json.dumps(found.signed)})
    part.unlink(missing_ok=True)
    return found


def require_prefixes(lm: LanguageModel) -> None:
    """Checks that a position of the model sees only what stands before it.

    Raises:
        UnsupportedModelError: it is an encoder.
    """
    lm.architecture.require_one_text("the search for triggers")
    if not lm.architecture.family.causal:
        raise UnsupportedModelError(
            f"{name_of(lm.model)} is an encoder: each position sees the whole text, so that a prefix has no "
            "coefficients of its own; take a causal language model"
        )


def _search(lm: LanguageModel, text: Text, t: int, part: Path) -> Triggers:
    """Runs the text once, from the first batch that the kept lists lack, which are in a file."""
    tokens = torch.tensor(text.sequences(lm), dtype=torch.int32)
    n_texts, length = tokens.shape
    n_prefixes = max(n_texts * (length - FIRST - 1), 0)
    if n_prefixes < t:
        raise ValueError(f"t={t}: the text has only {n_prefixes} prefixes; take longer text or a smaller t")
    memories = [lm.memory(layer) for layer in range(lm.n_layers)]
    signed = memories[0].gates is not None
    lists = [Largest(memory.d_ffn, t, signed) for memory in memories]
    done = _resume(part, lists)
    rows = max(1, TOKENS // length)
    numbers = torch.arange(n_texts * length).view(n_texts, length)
    starts = range(done, n_texts, rows)
    for number, start in enumerate(track(starts, f"Trigger examples in {tokens.numel():,} tokens"), 1):
        batch = lm.batch(tokens[start : start + rows].tolist())
        chosen = numbers[start : start + rows, FIRST:-1].flatten()
        with ExitStack() as stack:
            for layer, one in enumerate(lists):
                stack.enter_context(intervene(lm, Site("coefficients", layer), Apply(_into(one, chosen))))
            forward_to(lm, batch, lm.n_layers - 1)
        if number % CHECKPOINT == 0:
            _write(part, lists, start + rows)
    return Triggers(
        signed=signed,
        source=text.key(lm),
        coefficients=torch.stack([one.coefficients.cpu() for one in lists]),
        prefixes=torch.stack([one.prefixes.cpu() for one in lists]).int(),
        tokens=tokens,
    )


def _into(largest: Largest, prefixes: Tensor) -> Callable[[Tensor], None]:
    """What looks at the coefficients (batch, position, d_ffn) of a forward, and leaves them as they are."""

    def look(coefficients: Tensor) -> None:
        largest.add(coefficients[:, FIRST:-1].flatten(0, 1), prefixes)

    return look


def _write(path: Path, lists: list[Largest], done: int) -> None:
    tensors = {f"coefficients.{layer}": one.coefficients for layer, one in enumerate(lists)}
    tensors |= {f"prefixes.{layer}": one.prefixes for layer, one in enumerate(lists)}
    write_checked(path, tensors, {"progress": json.dumps(done)})


def _resume(path: Path, lists: list[Largest]) -> int:
    """Fills the lists with those of a pass that was cut short; returns how many texts it has looked at."""
    known = read_kept(path, "the search is begun anew")
    if known is None:
        return 0
    tensors, said = known
    for layer, one in enumerate(lists):
        one.coefficients, one.prefixes = tensors[f"coefficients.{layer}"], tensors[f"prefixes.{layer}"]
    done: int = json.loads(said["progress"])
    return done
