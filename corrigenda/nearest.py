"""The names nearest to one that does not exist: what an error says of a slip of the hand."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str], most: int = 2, cutoff: float = 0.6, place: str = "") -> str:
    """Such as "did you mean rome or random?", or nothing where no known name is near.

    Args:
        name: what was given.
        known: the names that there are.
        most: so many of them at most are said.
        cutoff: how alike two names have to be, from 0 to 1 (`difflib.get_close_matches`).
        place: is written before each.
    """
    near = difflib.get_close_matches(str(name), list(known), most, cutoff)
    return f"did you mean {' or '.join(place + each for each in near)}?" if near else ""
