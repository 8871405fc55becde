"""How the modules that hold a matrix keep it: some as (in, out), some as (out, in)."""

from __future__ import annotations

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D


def stores_transposed(module: nn.Module) -> bool:
    """Whether a matrix module keeps its weight as (in, out), as GPT-2's Conv1D does, and not as Linear's (out, in)."""
    return isinstance(module, Conv1D)


def is_matrix(module: nn.Module) -> bool:
    """Whether a module is a matrix that acts on each position alone."""
    return isinstance(module, (nn.Linear, Conv1D))


def in_out(module: nn.Module) -> tuple[int, int]:
    """The widths of what a matrix module takes and of what it gives."""
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    rows, columns = weight.shape
    return (rows, columns) if stores_transposed(module) else (columns, rows)
