"""Edits: what can be applied to a model, taken back bit for bit, saved and loaded; one file a kind."""

# `Edit.load` finds a kind by its name among those that were imported: all of ours are, with any file of this package.
from corrigenda.edits import (
    added_neurons,
    attached,
    blocks,
    codebook,
    coefficients,
    context,
    counterfactual,
    experts,
    hopfield,
    low_rank,
    masked_memory,
    retrieval,
    scoped,
    side_memory,
    values,
)

__all__ = [
    "added_neurons",
    "attached",
    "blocks",
    "codebook",
    "coefficients",
    "context",
    "counterfactual",
    "experts",
    "hopfield",
    "low_rank",
    "masked_memory",
    "retrieval",
    "scoped",
    "side_memory",
    "values",
]
