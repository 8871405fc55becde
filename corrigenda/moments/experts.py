"""Second moments of the experts that answer, for updates that write into several experts of a layer at once.

The answer of a mixture is linear in the values of all its experts, with the coefficients w_e m_e side by side
(`corrigenda.models.experts`). Of their second moment only the blocks of single experts are kept, E[w_e^2 m_e m_e^T]
over all tokens: what two experts have in common is left out, and so C^-1 k is solved expert by expert.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from corrigenda.errors import UnsupportedModelError
from corrigenda.language_model import LanguageModel
from corrigenda.models.experts import ExpertMemory, MixtureMemory
from corrigenda.models.memory import FFNMemory
from corrigenda.moments.second_moment import SecondMoment, compute, kept_moment
from corrigenda.moments.text import Text
from corrigenda.system.files import cache_folder


class ExpertMoments:
    """The second moments of a layer's experts, each taken when it is first asked for, and kept on disk.

    Together they are C of the whole layer, with one block on the diagonal for each expert; it is asked as a
    `SecondMoment` is.

    Args:
        lm: the model; edits that are applied are lifted meanwhile.
        layer: a mixture, counted from the bottom.
        text: over what.

    Raises:
        UnsupportedModelError: the layer is no mixture.
    """

    def __init__(self, lm: LanguageModel, layer: int, text: Text) -> None:
        self._lm, self.text = lm, text.fitting(lm)
        self._mixture = MixtureMemory(lm.architecture, layer)
        self.layer = self._mixture.layer

    def solve(self, keys: Tensor, ridge: float = 1e-6) -> Tensor:
        """C^-1 k, (n, width), in the metric of the experts that answer; solved in float64, as precise as the keys.

        Keys are as `MixtureMemory.capture_key` has them; what is no coefficient may be left out, and is zero in the
        result, as are experts that do not answer. The ridge is added to each diagonal, in the unit of C.
        """
        directions = torch.zeros_like(keys)
        blocks = {e: block for e in range(self._mixture.n_experts) if keys[:, block := self._mixture.block(e)].any()}
        for expert, moment in self._moments(list(blocks)):
            directions[:, blocks[expert]] = moment.solve(keys[:, blocks[expert]], ridge)
        return directions

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        """The blocks on the diagonal that C consists of, one for each expert, (d_ffn, d_ffn), float64."""
        return tuple(moment.matrix for _, moment in self._all())

    @property
    def matrix(self) -> Tensor:
        """C, (width, width), float64: large, and only for systems of more than width / 2 keys."""
        return torch.block_diag(*self.blocks)

    @cached_property
    def trace(self) -> float:
        """C's trace: the mean of the sum of |w_e m_e|^2 over the text."""
        return math.fsum(moment.trace for _, moment in self._all())

    @property
    def scale(self) -> float:
        """C's mean diagonal."""
        return self.trace / self._mixture.width

    @property
    def width(self) -> int:
        """The number of coefficients of all experts."""
        return self._mixture.width

    @cached_property
    def tokens(self) -> int:
        """Over how many tokens the means were taken, those counted that an expert was not chosen for."""
        return next(self._all())[1].tokens

    @cached_property
    def full_rank(self) -> bool:
        """Whether the block of every expert can be inverted as it is."""
        return all(moment.full_rank for _, moment in self._all())

    def null_space(self, energy: float) -> NoReturn:
        """There is none: its basis would be as large as C, whose other blocks are not known.

        Raises:
            UnsupportedModelError: always.
        """
        raise UnsupportedModelError(
            f"layer {self.layer} of {self._lm.name} is a mixture of {self._mixture.n_experts} experts, and the null "
            f"space (energy={energy}) of what text uses is known only for layers with one memory; take MEMIT or EMMET, "
            "which write to the experts that answer"
        )

    def _all(self) -> Iterator[tuple[int, SecondMoment]]:
        return self._moments(range(self._mixture.n_experts))

    def _moments(self, experts: Sequence[int]) -> Iterator[tuple[int, SecondMoment]]:
        """Those of some experts, one after another: together they may not fit into memory."""
        folder = cache_folder() / "moments"
        layer, text = f"{self._lm.cache_key}-layer{self.layer}", self.text.key(self._lm)
        paths = {expert: folder / f"{layer}-expert{expert}-{text}.safetensors" for expert in experts}
        self._compute({expert: path for expert, path in paths.items() if not path.is_file()})
        for expert, path in paths.items():
            again = partial(self._compute, {expert: path})
            yield expert, kept_moment(self._lm, path, self.layer, self.text, again)

    def _compute(self, paths: Mapping[int, Path]) -> None:
        missing = [(ExpertMemory(self._lm.architecture, self.layer, one), path) for one, path in paths.items()]
        if missing:
            with self._lm.edits.suspended():
                compute(self._lm, missing, self.text)


Moment = SecondMoment | ExpertMoments
"""C of a layer, whatever its feed-forward network is."""


def tokens_for(memory: FFNMemory, per_coefficient: int) -> int:
    """Of how many tokens so many fall on each of a layer's coefficients; in a mixture, if experts are chosen alike."""
    return math.ceil(per_coefficient * memory.width / memory.n_answering)
