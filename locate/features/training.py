"""`DictionaryTraining`: trains a dictionary of TopK on a layer's FFN, and goes on where it was cut short.

The loss (Gao et al. 2024, "Scaling and evaluating sparse autoencoders", section 2 and appendix A), in shares of the
batch's variance |y - mean|^2, with ^ what a dictionary makes of x:

    L = |y - y^|^2 + alpha s |e - e^|^2 + 1/8 |y - y^(4k)|^2

e = y - y^ is held fixed, e^ = m_aux D of the k_aux = d / 2 dead features that score highest, s = min(1, dead / k_aux).
The last term, Multi-TopK, is off by default. After each step rows of D are unit vectors; before it their gradient loses
what would only change their length. Activations come from a buffer of many texts, shuffled.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
import xxhash
from torch import Tensor
from torch.nn.functional import normalize

from corrigenda import LanguageModel
from corrigenda.dictionaries.dictionary import FIRST, FeatureDictionary, require_place
from corrigenda.errors import SettingsError
from corrigenda.forward.differentiable import differentiable
from corrigenda.models.alone import one_thread
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, Count, NotNegative, Positive, Seed, checked
from corrigenda.system.files import cache_folder, read_kept, write_checked
from corrigenda.system.progress import track
from locate.features.states import batches, ffn_states

Sequences = Sequence[Sequence[int]]
MULTI, MULTI_WEIGHT = 4, 1 / 8


@dataclass(frozen=True)
@checked
class DictionaryTraining:
    """How a dictionary is trained.

    Attributes:
        layer: whose FFN; negative numbers count from the end, None for the one in the middle.
        reads: "output" for an autoencoder of the FFN's output, "input" for a transcoder with a skip connection.
        features: how many; None for eight times the width.
        k: how many fire at a token.
        tokens: so many are learned from in all; of a training that is there those that are missing.
        shipped: tokens of the text that ships.
        sampled: tokens sampled from the model; text is gone through again until all are learned from.
        length: of a text, in tokens.
        held_out: texts of those that ship that are not learned from: figures are taken over them.
        batch: tokens in a step.
        buffer: tokens that are shuffled together, or up to a text's more; those beyond a whole batch are left out.
        every: buffers after which the state is kept.
        lr: Adam's; None for 2e-4 / sqrt(features / 2^14), as sparsify has it.
        auxk: alpha.
        dead_after: tokens after which a feature that did not fire counts as dead.
        multi_topk: whether the loss has its last term.
        seed: of the first rows, and of the order of texts and tokens.

    Raises:
        SettingsError: a buffer has no whole batch, or a text no token beside its first.
    """

    group: ClassVar[str] = "job"

    layer: int | None = None
    reads: Literal["input", "output"] = "output"
    features: AtLeastOne | None = None
    k: AtLeastOne = 32
    tokens: AtLeastOne = 2_000_000
    shipped: AtLeastOne = 200_000
    sampled: Count = 200_000
    length: AtLeastOne = 64
    held_out: AtLeastOne = 128
    batch: AtLeastOne = 2048
    buffer: AtLeastOne = 32_768
    every: AtLeastOne = 4
    lr: Positive | None = None
    auxk: NotNegative = 1 / 32
    dead_after: AtLeastOne = 200_000
    multi_topk: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.length <= FIRST + 1:
            raise SettingsError(f"{self.group}.length={self.length} must be {FIRST + 2} or more")
        if self.buffer < self.batch:
            raise SettingsError(f"{self.group}.buffer={self.buffer} must be {self.group}.batch={self.batch} or more")

    def texts(self, lm: LanguageModel) -> tuple[Sequences, Sequences]:
        """The texts to learn from, and those that are held out.

        Raises:
            SettingsError: all texts that there are would be held out; or a text is longer than `shipped`.
        """
        found = Text("shipped", self.shipped, self.length).sequences(lm)
        if len(found) <= self.held_out:
            raise SettingsError(
                f"{self.group}.held_out={self.held_out} must be below {len(found)}, the number of texts"
            )
        random.Random(self.seed).shuffle(found)
        more: Sequences = []
        if self.sampled:
            more = Text("self", max(self.sampled, self.length), self.length, seed=self.seed + 1).sequences(lm)
        return [*found[self.held_out :], *more], found[: self.held_out]

    @one_thread
    def train(self, lm: LanguageModel, texts: Sequences) -> tuple[FeatureDictionary, list[dict[str, float]]]:
        """The dictionary, on the model's device, and its learning curve, from token sequences of `texts`.

        Its state is kept on disk as it learns: the same call goes on from there, to the same bits. Raises IndexError:
        the model has no such layer; SettingsError: there are fewer features than fire, or it has learned from more
        tokens already; UnsupportedModelError: the layer is a mixture of experts, or the model an encoder or an
        encoder-decoder; ValueError: an edit is applied, or the model gives no finite numbers; WrongModelError: its
        weights were changed by hand.
        """
        if lm.edits:
            raise ValueError("a dictionary is trained on the unedited model: revert its edits first")
        layer = lm.architecture.numbered(lm.n_layers // 2 if self.layer is None else self.layer)
        require_place(lm, layer, "training a dictionary")
        training = _Training(self, lm, layer, texts)
        path = cache_folder() / "dictionaries" / lm.cache_key / f"{self._key(layer, texts)}.safetensors"
        if (kept := read_kept(path, "the training begins anew")) is not None:
            training.restore(*kept)
        per_buffer = training.rows * (self.length - FIRST) // self.batch * self.batch
        buffers = -(-self.tokens // per_buffer)
        if training.done > buffers:
            raise SettingsError(
                f"{self.group}.tokens={self.tokens} is too few: the dictionary of these settings has learned from "
                f"{training.done * per_buffer:,} tokens already; ask for as many, or for another {self.group}.seed"
            )
        for number in track(range(training.done, buffers), "Training a dictionary"):
            training.learn_from(number)
            if training.done % self.every == 0:
                write_checked(path, *training.state())
        write_checked(path, *training.state())
        return training.dictionary(), training.curve

    def _key(self, layer: int, texts: Sequences) -> str:
        """What tells one training from another; with more tokens it is the same."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(DictionaryTraining)}
        own = {name: value for name, value in own.items() if name not in ("tokens", "every")} | {"layer": layer}
        return xxhash.xxh3_128(json.dumps([own, [*map(list, texts)]], sort_keys=True).encode()).hexdigest()


class _Training:
    """A dictionary as it learns: the buffers behind it, the texts in each, and means over each (the curve)."""

    def __init__(self, asked: DictionaryTraining, lm: LanguageModel, layer: int, texts: Sequences) -> None:
        width = lm.memory(layer).d_model
        n = 8 * width if asked.features is None else asked.features
        if max(asked.k * (MULTI if asked.multi_topk else 1), 1) > n:
            raise SettingsError(
                f"{asked.group}.features={n} must be job.k={asked.k} or more (four times that, multi_topk)"
            )
        self._asked, self._lm, self._layer, self._texts = asked, lm, layer, texts
        draw = torch.Generator().manual_seed(asked.seed)
        rows = normalize(torch.randn(n, width, generator=draw), dim=1)
        begin = {"encoder": rows, "encoder_bias": torch.zeros(n), "decoder": rows.clone()}
        begin["decoder_bias"] = torch.zeros(width)
        if asked.reads == "input":
            begin["skip"] = torch.zeros(width, width)
        self._parts = {name: one.to(lm.device).requires_grad_() for name, one in begin.items()}
        rate = 2e-4 / (n / 2**14) ** 0.5 if asked.lr is None else asked.lr
        self._optimiser = torch.optim.Adam(self._parts.values(), lr=rate, eps=6.25e-10)
        self._silent = torch.zeros(n, dtype=torch.long, device=lm.device)
        self.done, self.rows = 0, -(-asked.buffer // (asked.length - FIRST))
        self.curve: list[dict[str, float]] = []
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def dictionary(self, learns: bool = False) -> FeatureDictionary:
        """As it is now, of the same memory; with gradients while it learns."""
        asked = self._asked
        parts: dict[str, Any] = {name: one if learns else one.detach() for name, one in self._parts.items()}
        return FeatureDictionary(
            self._layer, **parts, k=asked.k, reads=asked.reads, centred=asked.reads == "output", name="the dictionary"
        )

    def learn_from(self, number: int) -> None:
        """The steps of a buffer."""
        x, y = self._buffer(number)
        if number == 0:
            self._parts["decoder_bias"].data.copy_(y.mean(0))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(self._asked.seed * 2**20 + number))
        order = order[: len(x) // self._asked.batch * self._asked.batch].to(x.device)
        losses = [self._step(x[places], y[places]) for places in order.split(self._asked.batch)]
        self.done += 1
        point = {name: sum(loss[name] for loss in losses) / len(losses) for name in losses[0]}
        self.curve.append({"tokens": float(self.done * len(order)), **point})

    @differentiable()
    def _step(self, x: Tensor, y: Tensor) -> dict[str, float]:
        asked = self._asked
        one = self.dictionary(learns=True)
        scores = learning_scores(one, x)
        variance = (y - y.mean(0)).square().sum()

        def unexplained(k: int) -> tuple[Tensor, Tensor, Tensor]:
            largest, places = scores.topk(k, sorted=False)
            return y - one.finish(one.weigh(largest, places), x), largest, places

        error, largest, places = unexplained(asked.k)
        share = error.square().sum() / variance
        dead = self._silent >= asked.dead_after
        aux = auxk(one, scores, dead, error.detach()) / variance
        loss = share + asked.auxk * aux
        if asked.multi_topk:
            loss = loss + MULTI_WEIGHT * unexplained(MULTI * asked.k)[0].square().sum() / variance
        self._optimiser.zero_grad()
        loss.backward()
        with torch.no_grad():
            rows = self._parts["decoder"]
            assert rows.grad is not None
            rows.grad -= (rows.grad * rows).sum(1, keepdim=True) * rows
            self._optimiser.step()
            rows.copy_(normalize(rows, dim=1))
            self._silent += len(x)
            self._silent[places[largest > 0]] = 0
        return {"unexplained": float(share.detach()), "auxk": float(aux.detach()), "dead": float(dead.double().mean())}

    def _buffer(self, number: int) -> tuple[Tensor, Tensor]:
        """X and y, (n, d_model), of the texts of a buffer, without their first positions."""
        n = len(self._texts)
        numbers = [self._order(place // n)[place % n] for place in range(number * self.rows, (number + 1) * self.rows)]
        parts: list[tuple[Tensor, Tensor]] = []
        for some in batches([self._texts[each] for each in numbers]):
            states = ffn_states(self._lm, self._layer, self._lm.batch(some))
            given, output = (each[:, FIRST:].flatten(0, 1).float() for each in states)
            parts.append((given if self._asked.reads == "input" else output, output))
        x, y = (torch.cat(side) for side in zip(*parts, strict=True))
        if not bool(x.isfinite().all() and y.isfinite().all()):
            raise ValueError(
                f"{self._lm.name} gives no numbers (NaN or infinity) at layer {self._layer}; is it wrecked?"
            )
        return x, y

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._texts)))
        random.Random(f"{self._asked.seed} {epoch} texts").shuffle(order)
        return order

    def state(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Everything that `restore` needs, for `write_checked`."""
        tensors = {name: one.detach() for name, one in self._parts.items()} | {"silent": self._silent}
        for number, moments in self._optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": one for name, one in moments.items()}
        return tensors, {"done": str(self.done), "curve": json.dumps(self.curve)}

    def restore(self, tensors: dict[str, Tensor], said: dict[str, str]) -> None:
        """Takes up a state."""
        for name, one in self._parts.items():
            one.data.copy_(tensors[name])
        self._silent.copy_(tensors["silent"])
        adam: dict[int, dict[str, Tensor]] = {}
        for name, moment in tensors.items():
            if name.startswith("adam."):
                _, number, what = name.split(".")
                adam.setdefault(int(number), {})[what] = moment
        self._optimiser.load_state_dict(self._optimiser.state_dict() | {"state": adam})
        self.done, self.curve = int(said["done"]), json.loads(said["curve"])


def learning_scores(one: FeatureDictionary, x: Tensor) -> Tensor:
    """As `FeatureDictionary.scores`, with its gradients, at one product less.

    Through x - c each row would have a gradient of its own, of which c takes the sum alone. Here c's gradient goes
    through E (c - c), a zero.
    """
    if not one.centred:
        return one.scores(x)
    still = one.decoder_bias.detach()
    bias = one.encoder_bias - one.encoder @ (one.decoder_bias - still)
    return dataclasses.replace(one, encoder_bias=bias, decoder_bias=still).scores(x)


def auxk(one: FeatureDictionary, scores: Tensor, dead: Tensor, error: Tensor) -> Tensor:
    """S |e - e^|^2: how far dead features are from what is left (Gao et al. 2024, appendix A.2).

    Features' scores are (n, n_features), `dead` (n_features,), the error e (n, d_out).
    """
    n_dead, most = int(dead.sum()), error.shape[1] // 2
    if not n_dead:
        return error.new_zeros(())
    largest, places = scores.masked_fill(~dead, -1.0).topk(min(most, n_dead), sorted=False)
    return min(n_dead / most, 1.0) * (error - one.weigh(largest, places)).square().sum()
