"""Second moments of coefficients, C = E[m m^T], over running text; kept on disk.

C says which directions of the coefficient space a layer uses. An update of V along C^-1 k answers to the key k and as
little as possible to all the others (Meng et al. 2022, "Locating and Editing Factual Associations in GPT", eq. 2).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from corrigenda.edits.weights import memories_of
from corrigenda.forward.recording import forward_to
from corrigenda.language_model import LanguageModel
from corrigenda.models.memory import FFNMemory
from corrigenda.moments.sums import SquareSum, read_mean
from corrigenda.moments.text import Text
from corrigenda.system.files import cache_folder
from corrigenda.system.heap import give_back
from corrigenda.system.progress import track

ROWS = 32
"""Sequences run at once."""
KEPT = 2**31
"""So many bytes of moments, each with a factor, are kept in memory with a model: of those asked for last."""
HELD = 3 * 2**29
"""So many bytes of sums are held at once; for further ones the text runs again. Two of 8,960 coefficients fit."""


@dataclass(frozen=True, eq=False)
class SecondMoment:
    """C = E[m m^T] of one layer: solves with it, whitens by it, and finds the directions that the text hardly uses.

    Everything is in float64 on the CPU. What is expensive is done once: the Cholesky factor for each ridge, and the
    eigendecomposition when a method first needs it.

    Attributes:
        matrix: C, (d_ffn, d_ffn), float64.
        tokens: over how many tokens the mean was taken; the rank of C is not larger.
        layer: of which layer.
        text: over which text.
    """

    matrix: Tensor
    tokens: int
    layer: int
    text: Text

    def solve(self, keys: Tensor, ridge: float = 1e-6) -> Tensor:
        """C^-1 k, (n, d_ffn), solved in float64, in the precision of the keys.

        The ridge, in the unit of C (squared coefficients), is added to the diagonal, so that directions the text never
        used stay finite. Raises ValueError: C with the ridge is singular.
        """
        if ridge not in self._factors:
            matrix = self.matrix.clone()  # with 14,336 coefficients it has 1.6 GB: nothing else as large is made
            matrix.diagonal().add_(ridge)
            try:
                # By columns, which are its rows: LAPACK's order, so that neither step copies it.
                self._factors[ridge] = torch.linalg.cholesky(matrix.mT, out=matrix.mT)
            except RuntimeError as error:
                raise ValueError(
                    f"the second moment of layer {self.layer} (over {self.tokens} tokens, {len(matrix)} coefficients) "
                    f"is singular with the ridge {ridge:.3g}: take a ridge above 0, or more text"
                ) from error
        factor = self._factors[ridge]
        halfway = torch.linalg.solve_triangular(factor, keys.double().cpu().T, upper=False)
        return torch.linalg.solve_triangular(factor.mT, halfway, upper=True).T.to(keys)

    def whitening(self, ridge: float = 0.0) -> Tensor:
        """W = (C + ridge)^(-1/2), symmetric, (d_ffn, d_ffn), float64: but for the ridge, m W has the second moment I.

        The ridge is in units of C's mean diagonal, `scale`. Raises ValueError: C is singular, and there is no ridge.
        """
        if ridge <= 0 and self.rank < len(self.matrix):
            raise ValueError(
                f"the second moment of layer {self.layer} has rank {self.rank} of {len(self.matrix)} (over "
                f"{self.tokens} tokens): whitening needs a ridge above 0, not {ridge}, or more text"
            )
        size, directions = self.eigen
        return directions * (size.clamp(min=0) + ridge).rsqrt() @ directions.T / self.scale**0.5

    def null_space(self, energy: float) -> Tensor:
        """B, (d_ffn, k), float64: orthonormal directions that hold at most the share `energy` of C's trace; k may be 0.

        A change of V along them hardly shows on the text. They are the eigenvectors of the smallest eigenvalues, and
        the projector on them is B B^T. (AlphaEdit, Fang et al. 2025, sets a bound on each eigenvalue instead; a share
        of the trace means the same in every model.) Raises ValueError: `energy` is no share.
        """
        if not 0 <= energy <= 1:
            raise ValueError(f"energy must be a share of the trace, from 0 to 1, not {energy}")
        size, directions = self.eigen
        unused = torch.arange(len(size)) < len(size) - self.rank
        held = torch.where(unused, 0, size).cumsum(0)
        return directions[:, held / held[-1] <= energy]

    @property
    def width(self) -> int:
        """The number of coefficients."""
        return len(self.matrix)

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        """The blocks on the diagonal that C consists of: itself alone."""
        return (self.matrix,)

    @cached_property
    def trace(self) -> float:
        """C's trace: the mean of |m|^2 over the text."""
        return float(self.matrix.trace())

    @cached_property
    def full_rank(self) -> bool:
        """Whether C can be inverted as it is: it is over enough tokens, and has a Cholesky factor.

        It takes a twentieth of the time of `rank`, and may miss what only rounding keeps from being singular.
        """
        return self.tokens >= len(self.matrix) and not int(torch.linalg.cholesky_ex(self.matrix)[1])

    @cached_property
    def rank(self) -> int:
        """C's numerical rank: how many eigenvalues stand above float64's rounding of the largest; at most `tokens`."""
        size, _ = self.eigen
        above = int((size > float(size[-1]) * len(size) * torch.finfo(torch.float64).eps).sum())
        return min(above, self.tokens)

    @cached_property
    def scale(self) -> float:
        """C's mean diagonal: the mean square of a coefficient over the text."""
        return float(self.matrix.diagonal().mean())

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues of C / `scale`, ascending, (d_ffn,), and the eigenvectors as columns."""
        size, directions = torch.linalg.eigh(self.matrix / self.scale)
        return size, directions

    @cached_property
    def _factors(self) -> dict[float, Tensor]:
        """By ridge, the lower Cholesky factor of C + ridge I."""
        return {}


def second_moment(lm: LanguageModel, layer: int, text: Text | None = None) -> SecondMoment:
    """The second moment of one layer's coefficients; see `second_moments`."""
    [moment] = second_moments(lm, [layer], text).values()
    return moment


def second_moments(lm: LanguageModel, layers: Collection[int], text: Text | None = None) -> Mapping[int, SecondMoment]:
    """The second moments of some layers' coefficients, by layer, taken from the disk, or computed and kept there.

    Of the unedited model; negative layers count from the end. Summed in float32 within a batch, in float64 over
    batches. A file's name is made of the model's `cache_key`, the layer and the text. The sums so far are written down
    now and then, and an interrupted computation goes on from there; the bits are the same whether it was interrupted or
    not, and whichever layers are asked for together. Sums take 8 d_ffn^2 bytes for each layer, at most `HELD` at once:
    otherwise the text runs as often as it takes. Each moment is read when it is asked for. Raises IndexError: the model
    has no such layer; ValueError: a layer is named twice.
    """
    text = (text or Text()).fitting(lm)
    memories = {memory.layer: memory for memory in memories_of(lm, layers).values()}
    folder = cache_folder() / "moments"
    paths = {layer: folder / f"{lm.cache_key}-layer{layer}-{text.key(lm)}.safetensors" for layer in memories}
    missing = [(memories[layer], path) for layer, path in paths.items() if not path.is_file()]
    if missing:
        with lm.edits.suspended():
            compute(lm, missing, text)
    return KeptMoments(lm, paths, text)


class KeptMoments(Mapping[int, SecondMoment]):
    """The moments of some layers on the disk, by layer; each is read when it is asked for.

    Those of five layers of 14,336 coefficients have 8 GB: they need not be in memory at once.
    """

    def __init__(self, lm: LanguageModel, paths: Mapping[int, Path], text: Text) -> None:
        self._lm, self._paths, self._text = lm, paths, text

    def __getitem__(self, layer: int) -> SecondMoment:
        again = partial(second_moments, self._lm, [layer], self._text)
        return kept_moment(self._lm, self._paths[layer], layer, self._text, again)

    def note(self, layer: int) -> Path:
        """The file that is there where a layer's moment was found to be of full rank."""
        return self._paths[layer].with_suffix(".full-rank")

    def __contains__(self, layer: object) -> bool:
        return layer in self._paths

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def rank_deficient(moments: Mapping[int, SecondMoment]) -> Iterator[SecondMoment]:
    """Those that are singular without a ridge.

    To tell takes a Cholesky factor: that a moment on the disk is none is noted beside it, and it is not read again.
    """
    for layer in moments:
        note = moments.note(layer) if isinstance(moments, KeptMoments) else None
        if note is not None and note.is_file():
            continue
        moment = moments[layer]
        if not moment.full_rank:
            yield moment
        elif note is not None:
            note.touch()


def kept_moment(lm: LanguageModel, path: Path, layer: int, text: Text, again: Callable[[], object]) -> SecondMoment:
    """The moment in a file: the object of an earlier call, with the factors that it has by now, if it is kept.

    `again` computes the file where it is damaged.
    """
    changed = path.stat().st_mtime_ns
    known = lm.kept.pop(path, None)
    if known is not None and known[0] == changed:
        lm.kept[path] = known
        moment: SecondMoment = known[1]
        return moment
    room = KEPT - 2 * path.stat().st_size
    while lm.kept and sum(2 * one.matrix.nbytes for _, one in lm.kept.values()) > room:
        del lm.kept[next(iter(lm.kept))]  # before another is read, so that both need not be in memory
    give_back()
    mean = read_mean(path)
    if mean is None:
        path.unlink()
        again()
        return kept_moment(lm, path, layer, text, again)
    moment = SecondMoment(*mean, layer, text)
    if room >= 0:
        lm.kept[path] = (changed, moment)
    return moment


def compute(lm: LanguageModel, missing: Sequence[tuple[FFNMemory, Path]], text: Text) -> None:
    """Runs the text for as many sums at once as are held, and writes them to their files."""
    sequences = text.sequences(lm)
    batches = [sequences[i : i + ROWS] for i in range(0, len(sequences), ROWS)]
    at_once = max(1, HELD // max(8 * memory.d_ffn**2 for memory, _ in missing))
    for first in range(0, len(missing), at_once):
        part = missing[first : first + at_once]
        _compute(lm, [(memory, SquareSum(memory.d_ffn, path)) for memory, path in part], batches)


def _compute(
    lm: LanguageModel, sums: Sequence[tuple[FFNMemory, SquareSum]], batches: Sequence[Sequence[Sequence[int]]]
) -> None:
    """Runs the text once, up to the highest layer, from the first batch that a sum lacks."""
    names = ", ".join(str(memory.layer) for memory, _ in sums)
    for number, rows in enumerate(track(batches, f"Second moment of layer {names}")):
        lacking = [(memory, one) for memory, one in sums if one.done <= number]
        if not lacking:
            continue
        batch = lm.batch(rows)
        with ExitStack() as stack:
            seen = [stack.enter_context(memory.capture(batch.attention_mask.bool())) for memory, _ in lacking]
            forward_to(lm, batch, max(memory.layer for memory, _ in lacking))
        for (_, one), found in zip(lacking, seen, strict=True):
            one.add(found.shares)
    for _, one in sums:
        one.finish()
