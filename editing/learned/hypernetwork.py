"""`Hypernetwork`: what it makes of a gradient's rows; and `TrainedNetwork`, one with what it was trained on, on disk.

The gradient of a loss with respect to the values V of a layer is a sum over tokens of u^T d, with u the coefficients
(d_ffn) and d the gradient with respect to the FFN's output (d_model). The network takes each pair to another (Mitchell
et al. 2022a, "Fast Model Editing at Scale", section 3.2):

    z = [(u - mean) / deviation, (d - mean) / deviation]
    z <- z + relu(s_l * (z A B + b) + o_l)            in each block; s_l and o_l are the layer's, the rest is shared
    u~, d~ = z

B = 0 at first, so that an untrained network is the identity of normalised pairs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from corrigenda import LanguageModel
from corrigenda.errors import DamagedFileError, WrongModelError
from corrigenda.system.files import cache_folder, write_tensors

FORMAT = "corrigenda-hypernetwork-2"

_SAID = ("model", "fingerprint", "editor", "end_token", "facts", "made")
"""What is written of a `TrainedNetwork` beside its network."""

N = TypeVar("N", bound="LayersNetwork")


class ResidualBlock(nn.Module):
    """z + relu(s_l * (z A B + b) + o_l), with A (width, rank) and B (rank, width); s and o are of each layer."""

    def __init__(self, n_layers: int, width: int, rank: int) -> None:
        super().__init__()
        self.A = nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, rank)))
        self.B = nn.Parameter(torch.zeros(rank, width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.ones(n_layers, width))
        self.shift = nn.Parameter(torch.zeros(n_layers, width))

    def forward(self, z: Tensor, place: int) -> Tensor:
        """(n, width) -> (n, width), for the layer at a place."""
        inner = self.scale[place] * (z @ self.A @ self.B + self.bias) + self.shift[place]
        return z + inner.clamp(min=0)  # a clamp has a gradient at 0, where all of it begins; a ReLU has none


class LayersNetwork(nn.Module):
    """What is trained for some layers, ascending; made again of them and the other arguments, its `shape`."""

    def __init__(self, layers: Sequence[int], **shape: Any) -> None:
        super().__init__()
        self.layers = tuple(layers)
        self.shape = shape


class Hypernetwork(LayersNetwork):
    """One network for several layers of the same shape, with a rate for each.

    Args:
        layers: counted from the bottom, ascending.
        d_ffn: the length of u.
        d_model: the length of d.
        rank: of a block's matrix.
        blocks: how many; none is the identity.
        weighed: whether each layer has a weight lambda, too, as MALMEN's have.

    Attributes:
        mean: of the pairs that it was trained on, (d_ffn + d_model,).
        deviation: of these, likewise.
        log_rates: the logarithm of each layer's rate, (layer,).
        log_weights: the logarithm of each layer's lambda, (layer,); None where there is none.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, layers: Sequence[int], d_ffn: int, d_model: int, rank: int, blocks: int, weighed: bool = False
    ) -> None:
        super().__init__(layers, d_ffn=d_ffn, d_model=d_model, rank=rank, blocks=blocks, weighed=weighed)
        self.register_buffer("mean", torch.zeros(d_ffn + d_model))
        self.register_buffer("deviation", torch.ones(d_ffn + d_model))
        self.blocks = nn.ModuleList(ResidualBlock(len(layers), d_ffn + d_model, rank) for _ in range(blocks))
        self.log_rates = nn.Parameter(torch.zeros(len(layers)))
        self.log_weights = nn.Parameter(torch.zeros(len(layers))) if weighed else None

    def forward(self, u: Tensor, d: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Pairs (n, d_ffn) and (n, d_model) of the layer at a place, to others of the same shapes."""
        z = (torch.cat([u, d], 1) - self.mean) / self.deviation
        for block in self.blocks:
            z = block(z, place)
        return z[:, : u.shape[1]], z[:, u.shape[1] :]

    def rate(self, place: int) -> Tensor:
        """The rate of the layer at a place, a number."""
        return self.log_rates[place].exp()


class SeenFact(NamedTuple):
    """A fact that a network was trained on."""

    id: str
    subject: str


@dataclass(frozen=True, eq=False)
class TrainedNetwork(Generic[N]):
    """A network for a model, with what it was trained on.

    Attributes:
        model: the model's name.
        fingerprint: of its weights before any edit.
        editor: the name of the editor that it was trained for.
        end_token: whether the end token was a part of the targets.
        network: on the CPU.
        facts: those that it was trained on, or held out for its learning curve.
        made: how, of plain JSON values; ``curve`` has the held-out losses.
    """

    model: str
    fingerprint: str
    editor: str
    end_token: bool
    network: N
    facts: tuple[SeenFact, ...] = ()
    made: Mapping[str, Any] = field(default_factory=dict)

    def require(self, lm: LanguageModel, editor: str, layers: Sequence[int], end_token: bool) -> None:
        """Checks that it was trained for a model, an editor, layers, and targets with or without the end token.

        Raises:
            WrongModelError: it was not.
        """
        command = f"corrigenda train editor={editor} data=..."
        if self.fingerprint != lm.fingerprint:
            raise WrongModelError(
                f"{editor}: the network was trained on {self.model}, whose weights are others than those of {lm.name}: "
                f"train one ({command})"
            )
        if (self.editor, self.network.layers) != (editor, tuple(layers)):
            raise WrongModelError(
                f"{editor}: the network was trained for {self.editor} at layers {list(self.network.layers)}, and is "
                f"asked for at layers {list(layers)}: name these, or train one ({command})"
            )
        if self.end_token != end_token:
            raise WrongModelError(
                f"{editor}: the network was trained with end_token={str(self.end_token).lower()}, and is asked for "
                f"with end_token={str(end_token).lower()}: give that, or train one ({command})"
            )

    def save(self, path: str | Path) -> None:
        """Writes it as one safetensors file, atomically."""
        said = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in _SAID},
            "layers": self.network.layers,
            "shape": self.network.shape,
        }
        write_tensors(Path(path), self.network.state_dict(), {"network": json.dumps(said, allow_nan=False)})

    @classmethod
    def load(cls, path: str | Path, kind: type[N]) -> TrainedNetwork[N]:
        """The network of a kind that `save` wrote.

        Raises FileNotFoundError: there is none; DamagedFileError: the file cannot be read, or is no network's of this
        kind.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no network; train one (corrigenda train)")
        try:
            with safe_open(path, framework="pt") as file:
                said = json.loads((file.metadata() or {})["network"])
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            if said["format"] != FORMAT:
                raise ValueError(f"the network's format is {said['format']!r}, and not {FORMAT!r}")
            network = kind([*map(int, said["layers"])], **said["shape"])
            network.load_state_dict(tensors)
            if wrong := [name for name, one in tensors.items() if not bool(one.isfinite().all())]:
                raise ValueError(f"{wrong[0]} is not finite")
            facts = tuple(SeenFact(*one) for one in said["facts"])
            return TrainedNetwork(network=network, **{name: said[name] for name in _SAID} | {"facts": facts})
        except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise DamagedFileError(f"{path} is damaged, or no network ({str(error).splitlines()[0]})") from None


def kept_network(lm: LanguageModel, editor: str) -> Path:
    """Where the network that was trained for a model and an editor is kept."""
    return cache_folder() / "hypernetworks" / lm.fingerprint / f"{editor}.safetensors"
