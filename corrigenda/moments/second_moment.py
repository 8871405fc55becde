"""Second moments of coefficients, C = E[m m^T], over running text; kept on disk.

C says which directions of the coefficient space a layer uses. An update of V along C^-1 k answers to the key k and as
little as possible to all the others (Meng et al. 2022, "Locating and Editing Factual Associations in GPT", eq. 2).
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from corrigenda.files import cache_folder, write_tensors
from corrigenda.forward.recording import forward_to
from corrigenda.language_model import LanguageModel
from corrigenda.models.memory import FFNMemory
from corrigenda.moments.text import Text
from corrigenda.progress import track

logger = logging.getLogger(__name__)

ROWS = 32
"""Sequences run at once."""
CHECKPOINT = 16
"""Batches after which the sum so far is written down."""


@dataclass(frozen=True)
class SecondMoment:
    """C = E[m m^T] of one layer.

    Attributes:
        matrix: C, (d_ffn, d_ffn), float64.
        tokens: over how many tokens the mean was taken.
        layer: of which layer.
        text: over which text.
    """

    matrix: Tensor
    tokens: int
    layer: int
    text: Text

    def solve(self, keys: Tensor, ridge: float = 1e-6) -> Tensor:
        """C^-1 k, solved in float64.

        Args:
            keys: (n, d_ffn).
            ridge: is added to the diagonal, so that directions the text never used stay finite; in the unit of C
                (squared coefficients).

        Returns:
            (n, d_ffn), in the precision of `keys`.
        """
        matrix = self.matrix + ridge * torch.eye(len(self.matrix), dtype=torch.float64)
        factor = torch.linalg.cholesky(matrix)
        return torch.cholesky_solve(keys.double().cpu().T, factor).T.to(keys)


def second_moment(lm: LanguageModel, layer: int, text: Text | None = None) -> SecondMoment:
    """The second moment of a layer's coefficients, taken from the disk or computed and kept there.

    Summed in float64. The file's name is made of the unedited weights' fingerprint, the layer and the text. While it
    is computed the sum so far is written down now and then, and an interrupted computation goes on from there with the
    same result.

    Args:
        lm: the model; edits that are applied are lifted meanwhile: the moment is the unedited model's.
        layer: which layer; negative numbers count from the end.
        text: over what; by default 8,192 tokens sampled from the model itself.
    """
    text = text or Text()
    memory = lm.memory(layer)
    path = cache_folder() / "moments" / f"{lm.fingerprint}-layer{memory.layer}-{text.key}.safetensors"
    if path.is_file():
        matrix, tokens, _ = _read(path)
        return SecondMoment(matrix, tokens, memory.layer, text)
    with lm.edits.suspended():
        return _computed(lm, memory, text, path)


def _computed(lm: LanguageModel, memory: FFNMemory, text: Text, path: Path) -> SecondMoment:
    part = path.with_suffix(".part")
    total, tokens, done = _read(part) if part.is_file() else (None, 0, 0)
    if total is None:
        total = torch.zeros(memory.d_ffn, memory.d_ffn, dtype=torch.float64)
    sequences = text.sequences(lm)
    batches = [sequences[i : i + ROWS] for i in range(0, len(sequences), ROWS)]
    for number, rows in enumerate(track(batches, f"Second moment of layer {memory.layer}")):
        if number < done:
            continue
        batch = lm.batch(rows)
        with memory.capture(batch.attention_mask.bool()) as seen:
            forward_to(lm, batch, memory.layer)
        keys = seen.coefficients.double().cpu()
        total += keys.T @ keys
        tokens += len(keys)
        if (number + 1) % CHECKPOINT == 0:
            _write(part, total, tokens, number + 1)
    _write(path, total / tokens, tokens, len(batches))
    part.unlink(missing_ok=True)
    return SecondMoment(total / tokens, tokens, memory.layer, text)


def _write(path: Path, matrix: Tensor, tokens: int, done: int) -> None:
    write_tensors(path, {"matrix": matrix}, {"progress": json.dumps([tokens, done])})


def _read(path: Path) -> tuple[Tensor, int, int]:
    with safe_open(path, framework="pt") as file:
        tokens, done = json.loads(file.metadata()["progress"])
        return file.get_tensor("matrix"), tokens, done
