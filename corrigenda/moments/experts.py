"""Second moments of the experts that answer, for updates that write into several experts of a layer at once.

The answer of a mixture is linear in the values of all its experts, with the coefficients w_e m_e side by side
(`corrigenda.models.mixtures`). Of their second moment only the blocks of single experts are kept, E[w_e^2 m_e m_e^T]
over all tokens: what two experts have in common is left out, and so C^-1 k is solved expert by expert.
"""

from __future__ import annotations

import torch
from torch import Tensor

from corrigenda.files import cache_folder
from corrigenda.language_model import LanguageModel
from corrigenda.models.experts import ExpertMemory, MixtureMemory
from corrigenda.moments.second_moment import SecondMoment, compute, kept_moment
from corrigenda.moments.sums import SquareSum
from corrigenda.moments.text import Text


class ExpertMoments:
    """The second moments of a layer's experts, each taken when a key first asks for it, and kept on disk.

    Args:
        lm: the model; edits that are applied are lifted meanwhile.
        layer: a mixture, counted from the bottom.
        text: over what.

    Raises:
        UnsupportedModelError: the layer is no mixture.
    """

    def __init__(self, lm: LanguageModel, layer: int, text: Text) -> None:
        self._lm, self._text = lm, text
        self._mixture = MixtureMemory(lm.architecture, layer)

    def solve(self, keys: Tensor, ridge: float = 1e-6) -> Tensor:
        """C^-1 k in the metric of the experts that answer, solved in float64.

        Args:
            keys: (n, width), as `MixtureMemory.capture_key` has them.
            ridge: is added to each diagonal, in the unit of C.

        Returns:
            (n, width), in the precision of `keys`; zeros for experts that do not answer, and for what is no
            coefficient.
        """
        directions = torch.zeros_like(keys)
        blocks = {e: block for e in range(self._mixture.n_experts) if keys[:, block := self._mixture.block(e)].any()}
        for expert, moment in self._moments(list(blocks)).items():
            directions[:, blocks[expert]] = moment.solve(keys[:, blocks[expert]], ridge)
        return directions

    def _moments(self, experts: list[int]) -> dict[int, SecondMoment]:
        layer, folder = self._mixture.layer, cache_folder() / "moments"
        paths = {
            expert: folder / f"{self._lm.fingerprint}-layer{layer}-expert{expert}-{self._text.key}.safetensors"
            for expert in experts
        }
        missing = []
        for expert, path in paths.items():
            if not path.is_file():
                memory = ExpertMemory(self._lm.architecture, layer, expert)
                missing.append((memory, SquareSum(memory.d_ffn, path)))
        if missing:
            with self._lm.edits.suspended():
                compute(self._lm, missing, self._text)
        return {expert: kept_moment(self._lm, path, layer, self._text) for expert, path in paths.items()}
