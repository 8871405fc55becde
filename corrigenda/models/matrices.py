"""How the modules that hold a matrix keep it: some as (in, out), some as (out, in)."""

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
    if isinstance(module, nn.Linear) and is_quantised(module):  # it may store its weight in another shape
        return module.in_features, module.out_features
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    rows, columns = weight.shape
    return (rows, columns) if stores_transposed(module) else (columns, rows)


def is_quantised(module: nn.Module) -> bool:
    """Whether a matrix module keeps something else than the matrix: 8- or 4-bit numbers with their scales, say."""
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    # float8 counts as floating point for torch, but nothing can be added to it
    return not weight.is_floating_point() or weight.element_size() < 2 or weight.ndim != 2
