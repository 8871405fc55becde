"""What models are called in tables and pictures, and the names nearest to one that does not exist."""

import difflib
import re
from collections.abc import Iterable
from pathlib import PurePosixPath, PureWindowsPath


def model_title(name: str) -> str:
    """A model's name for a reader: of a local model the folder's or file's name, of all others the whole.

    Where a model lies on somebody's disk says nothing to others, and fills a table's width.
    """
    if re.match(r"[A-Za-z]:[\\/]|\\\\", name):
        return PureWindowsPath(name).name or name
    local = name.startswith(("/", ".", "~")) or name.count("/") > 1
    return (PurePosixPath(name).name or name) if local else name


def alternatives(name: object, known: Iterable[str], what: str, cutoff: float = 0.6) -> str:
    """What to answer to a name that does not exist: the near ones, and all; `what` names them in the plural."""
    known = list(known)
    return f"{did_you_mean(name, known, cutoff=cutoff)} The {what} are {', '.join(known)}".strip()


def did_you_mean(name: object, known: Iterable[str], most: int = 2, cutoff: float = 0.6, place: str = "") -> str:
    """Such as "did you mean rome or random?", or nothing where no known name is near.

    At most `most` names are said, as alike as `cutoff` (`difflib.get_close_matches`), `place` before each.
    """
    near = difflib.get_close_matches(str(name), list(known), most, cutoff)
    return f"did you mean {' or '.join(place + each for each in near)}?" if near else ""
