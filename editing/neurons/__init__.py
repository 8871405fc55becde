"""Editors of single neurons: scale their coefficients, rewrite or blank their values."""
