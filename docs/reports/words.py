"""How the pages of figures write them."""

from __future__ import annotations

import textwrap

ALPHA = 0.05
"""A difference is told apart from none where p, corrected for all tests of its table, is below this."""


def paragraph(*parts: str) -> list[str]:
    """Running text in lines of a length that can be read."""
    return textwrap.wrap(" ".join(parts), 118, break_on_hyphens=False, break_long_words=False)


def chance(p: float) -> str:
    """A p-value."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
