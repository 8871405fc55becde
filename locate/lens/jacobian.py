"""The Jacobian lens: a state is taken to where the layers above take it on average, and then read.

    softmax(U norm(J_l h_l)),   J_l = E[d h_last / d h_l]

J_l, (d_model, d_model), is the mean over text of the Jacobian of the last state of a position with respect to the state
after layer l at the same position; what the position gives to later ones through their attention is not in it. The
logit lens is the case J_l = I. In lower layers, where states are not yet in the coordinates of the last one, it is the
better reader. J_l of the last layer is I.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.differentiable import differentiable
from corrigenda.forward.interventions import Add, Read, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import record
from corrigenda.models.alone import one_thread
from corrigenda.models.sites import Site
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, checked
from corrigenda.system.files import cache_folder, read_kept, write_checked
from corrigenda.system.progress import track
from locate.lens.words import final_norm

ROWS = 64
"""Rows of a Jacobian that are computed in one forward and backward, of one position each."""
CHECKPOINT = 4
"""Positions after which the sums so far are written down."""
DEFINITION = 1
"""Is in the names of the files on disk; another number for another mean."""


@dataclass(frozen=True)
@checked
class JacobianSettings:
    """Over what the mean Jacobian is taken.

    Attributes:
        text: which text; by default the one that ships.
        samples: over how many positions, each of a sequence of its own; the last of the sequence.
    """

    text: Text = field(default_factory=Text)
    samples: AtLeastOne = 32


@dataclass(frozen=True, eq=False)
class JacobianLens:
    """The mean Jacobians of a model, as a reader for `logit_lens`.

    Attributes:
        matrices: J_l, (layer, d_model, d_model), float32; row i is the gradient of the last state's dimension i.
        samples: over how many positions the mean is.
        path: the file that keeps them.
    """

    matrices: Tensor
    samples: int
    path: Path

    def carry(self, states: Tensor, layer: int) -> Tensor:
        """J_l h, (..., d_model), for states after a layer."""
        return states @ self.matrices[layer].to(states).T


@one_thread
def jacobian_lens(lm: LanguageModel, settings: JacobianSettings | None = None) -> JacobianLens:
    """The mean Jacobians from each layer to the last, of the unedited model, taken from the disk or computed.

    A position's Jacobians of all layers cost d_model forwards and backwards of that one position, from recorded
    attention. The sums so far are written down now and then, and an interrupted computation goes on from there.

    Args:
        lm: a decoder with a final norm; edits that are applied are lifted meanwhile.
        settings: over what.

    Raises:
        UnsupportedModelError: the model is an encoder, or has no final norm.
        ValueError: the text has fewer sequences than there are samples.
    """
    final_norm(lm)
    settings = settings or JacobianSettings()
    if settings.text.n_sequences < settings.samples:
        raise ValueError(
            f"JacobianSettings: samples={settings.samples} positions need as many sequences, and the text has "
            f"{settings.text.n_sequences}; take more text (text.tokens) or shorter sequences (text.length)"
        )
    name = f"{lm.cache_key}-{settings.text.fitting(lm).key(lm)}-{settings.samples}-{DEFINITION}.safetensors"
    path = cache_folder() / "jacobians" / name
    known = _read(path, "it is computed again")
    if known is None:
        with lm.edits.suspended():
            known = _compute(lm, settings, path)
    matrices, samples = known
    return JacobianLens(matrices.float(), samples, path)


def _compute(lm: LanguageModel, settings: JacobianSettings, path: Path) -> tuple[Tensor, int]:
    part = path.with_suffix(".part")
    width = lm.memory(0).d_model
    begun = _read(part, "the mean is begun anew")
    total, done = begun or (torch.zeros(lm.n_layers, width, width, dtype=torch.float64), 0)
    sequences = settings.text.sequences(lm)[: settings.samples]
    for number, ids in enumerate(track(sequences, "Mean Jacobians")):
        if number < done:
            continue
        total += position_jacobians(lm, ids).double().cpu()
        if (number + 1) % CHECKPOINT == 0 and number + 1 < len(sequences):
            _write(part, total, number + 1)
    mean = (total / len(sequences)).float()
    _write(path, mean, len(sequences))
    part.unlink(missing_ok=True)
    return mean, len(sequences)


def position_jacobians(lm: LanguageModel, ids: Sequence[int]) -> Tensor:
    """D h_last / d h_l at the last position of a text, for all layers, (layer, d_model, d_model)."""
    batch = lm.batch([ids])
    width, n = lm.memory(0).d_model, lm.n_layers
    recording = record(lm, batch, [0])
    found = torch.empty(n, width, width, dtype=lm.dtype, device=lm.device)
    for begin in range(0, width, ROWS):
        dimensions = torch.arange(begin, min(begin + ROWS, width), device=lm.device)
        rows = torch.zeros(len(dimensions), dtype=torch.long, device=lm.device)
        last = batch.lengths[rows] - 1
        forward = PartialForward(lm, recording, 0, last, rows)
        at = forward.local(last)
        # Nothing is added; but it asks for gradients, and its gradient is that of the state it joins.
        added = [torch.zeros(len(rows), width, dtype=lm.dtype, device=lm.device, requires_grad=True) for _ in range(n)]
        with differentiable(), ExitStack() as stack:
            for layer in range(n):
                stack.enter_context(intervene(lm, Site("block", layer), Add(added[layer]), at))
            seen = stack.enter_context(intervene(lm, Site("block", -1), Read(), at))
            forward.logits(at)
            wanted = seen.value.gather(1, dimensions[:, None]).sum()
        for layer, gradient in enumerate(torch.autograd.grad(wanted, added)):
            found[layer, dimensions] = gradient
    return found


def _write(path: Path, matrices: Tensor, samples: int) -> None:
    write_checked(path, {"matrices": matrices}, {"samples": str(samples)})


def _read(path: Path, then: str) -> tuple[Tensor, int] | None:
    known = read_kept(path, then)
    return None if known is None else (known[0]["matrices"], int(known[1]["samples"]))
