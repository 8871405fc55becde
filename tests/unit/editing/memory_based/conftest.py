from pathlib import Path

import pytest
import tiny
import torch

from corrigenda import LanguageModel
from corrigenda.edits.gate import Gate


@pytest.fixture
def gate(lm: LanguageModel, tmp_path: Path) -> Gate:
    """The centred cosine of one layer's states, in gate.safetensors."""
    made = Gate(lm.name, lm.fingerprint, (1,), torch.full((tiny.WIDTH,), 0.1), (torch.eye(tiny.WIDTH),), 0.98)
    made.save(tmp_path / "gate.safetensors")
    return made
