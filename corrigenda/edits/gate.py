"""`Gate`: whether two prompts ask the same, by the cosine of what the model makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional

from corrigenda.errors import DamagedFileError, WrongModelError
from corrigenda.forward.recording import forward_to, watching
from corrigenda.models.bare import BareModel
from corrigenda.prompts import TokenBatch
from corrigenda.system.files import write_tensors

FORMAT = "corrigenda-gate-1"


@dataclass(frozen=True, eq=False)
class Gate:
    """A map of states, and the cosine above which two prompts ask the same.

    With x the states of a prompt, u = x - mean, and A_1, A_2 maps:

        z = (u_l W_l of each layer l, side by side)             whitened: the first map has three dimensions
        z = z A_1, or gelu(z A_1) A_2                           what was learned; without whitening z is u at first
        embed(x) = z / |z|

    Attributes:
        model: the name of the model whose states it reads.
        fingerprint: of that model's weights before any edit.
        layers: those whose residual stream is read, as it enters them.
        mean: (len(layers) * d_model,); tensors are in float32 on the CPU.
        maps: W, (len(layers), d_model, k), and then none, one or two matrices; or one or two matrices alone, of which
            the first takes len(layers) * d_model numbers.
        threshold: a cosine.
        made: what it was trained on, and what it was found to do, of plain JSON values.

    Raises:
        ValueError: shapes do not fit one another, or a number is not finite.
    """

    model: str
    fingerprint: str
    layers: tuple[int, ...]
    mean: Tensor = field(repr=False)
    maps: tuple[Tensor, ...] = field(repr=False)
    threshold: float
    made: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", self.mean.detach().float().cpu())
        object.__setattr__(self, "maps", tuple(one.detach().float().cpu() for one in self.maps))
        shapes = ", ".join(str(tuple(one.shape)) for one in (self.mean, *self.maps))
        layers = len(self.layers)
        try:
            self.embed(torch.zeros(1, layers, len(self.mean) // max(layers, 1)))
            fits = all(one.ndim == 2 or (number == 0 and len(one) == layers) for number, one in enumerate(self.maps))
        except (RuntimeError, IndexError):
            fits = False
        if not fits:
            raise ValueError(f"a gate of {layers} layers has tensors that do not fit one another: {shapes}")
        if not all(bool(one.isfinite().all()) for one in (self.mean, *self.maps, torch.tensor(self.threshold))):
            raise ValueError("a gate's tensors and its threshold have to be finite numbers")

    @property
    def width(self) -> int:
        """How many numbers stand for a prompt."""
        last = self.maps[-1]
        return last.shape[1] if last.ndim == 2 else last.shape[0] * last.shape[2]

    def read(self, states: Mapping[int, Tensor], prompt: Tensor) -> Tensor:
        """What of a forward `embed` takes, (batch, len(layers), d_model), in float32.

        `states` are what enters each of `layers`, (batch, position, d_model); `prompt`, (batch, position), is True for
        the tokens of each row's prompt.
        """
        return _last(self.layers, states, prompt)

    def embed(self, states: Tensor) -> Tensor:
        """Vectors of length 1, (n, width), in float32, of states (n, len(layers), d_model)."""
        mean, *maps = (one.to(states.device) for one in (self.mean, *self.maps))
        z = states.float().flatten(1) - mean
        if maps[0].ndim == 3:
            z = torch.einsum("nld,ldk->nlk", z.unflatten(1, (len(self.layers), -1)), maps.pop(0)).flatten(1)
        for number, one in enumerate(maps):
            z = (functional.gelu(z) if number else z) @ one
        return functional.normalize(z, dim=1)

    def of_prompts(self, lm: BareModel, batch: TokenBatch) -> Tensor:
        """`embed` of what a model makes of prompts, (batch, width).

        Raises:
            WrongModelError: the gate is another model's.
        """
        self.require(lm)
        return self.embed(states_of(lm, self.layers, batch))

    def require(self, lm: BareModel) -> None:
        """Checks that it was made for a model, or raises WrongModelError."""
        if lm.fingerprint != self.fingerprint:
            raise WrongModelError(
                f"the gate is {self.model}'s, whose weights are others than those of {lm.name}: train one for it "
                "(corrigenda gate)"
            )

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """Its tensors by name, behind a prefix; `restore` takes them."""
        return {f"{prefix}mean": self.mean, **{f"{prefix}map{i}": one for i, one in enumerate(self.maps)}}

    def said(self) -> dict[str, Any]:
        """The rest of it, of plain JSON values."""
        named = ("model", "fingerprint", "threshold")
        plain = {name: getattr(self, name) for name in named}
        return {"format": FORMAT, **plain, "layers": list(self.layers), "made": dict(self.made)}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], said: Mapping[str, Any], prefix: str = "") -> Gate:
        """The gate of what `tensors` (among others) and `said` gave.

        Raises:
            KeyError, TypeError, ValueError: they are damaged, or of another format.
        """
        if said["format"] != FORMAT:
            raise ValueError(f"the gate's format is {said['format']!r}, and not {FORMAT!r}")
        n_maps = sum(name.startswith(f"{prefix}map") for name in tensors)
        maps = tuple(tensors[f"{prefix}map{i}"] for i in range(n_maps))
        layers, threshold = tuple(map(int, said["layers"])), float(said["threshold"])
        return cls(said["model"], said["fingerprint"], layers, tensors[f"{prefix}mean"], maps, threshold, said["made"])

    def save(self, path: str | Path) -> None:
        """Writes it as one safetensors file, atomically; its maps in float16."""
        tensors = {name: one if name == "mean" else one.half() for name, one in self.tensors().items()}
        write_tensors(Path(path), tensors, {"gate": json.dumps(self.said(), allow_nan=False)})

    @classmethod
    def load(cls, path: str | Path) -> Gate:
        """The gate that `save` wrote.

        Raises:
            FileNotFoundError: there is none.
            DamagedFileError: the file cannot be read, or is no gate's.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no gate; train one (corrigenda gate)")
        try:
            with safe_open(path, framework="pt") as file:
                said = json.loads((file.metadata() or {})["gate"])
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return cls.restore(tensors, said)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(f"{path} is damaged, or no gate ({error!r})") from None


def states_of(lm: BareModel, layers: Sequence[int], batch: TokenBatch) -> Tensor:
    """What a gate of some layers reads of prompts: (batch, len(layers), d_model), in float32."""
    with watching(lm, layers) as watched:
        forward_to(lm, batch, max(layers))
    return _last(layers, watched.states, batch.attention_mask.bool())


def _last(layers: Sequence[int], states: Mapping[int, Tensor], prompt: Tensor) -> Tensor:
    """What enters layers at each row's last token of its prompt."""
    columns = torch.arange(prompt.shape[1], device=prompt.device)
    last = torch.where(prompt, columns, 0).amax(1)
    rows = torch.arange(len(prompt), device=prompt.device)
    return torch.stack([states[layer][rows, last].float() for layer in layers], 1)
