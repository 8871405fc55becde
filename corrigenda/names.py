"""What models are called in tables and pictures."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath


def model_title(name: str) -> str:
    """A model's name for a reader: of a local model the folder's or file's name, of all others the whole.

    Where a model lies on somebody's disk says nothing to others, and fills a table's width.

    Args:
        name: as it was loaded: a short name, a hub id ``owner/name``, or a path.
    """
    if re.match(r"[A-Za-z]:[\\/]|\\\\", name):
        return PureWindowsPath(name).name or name
    local = name.startswith(("/", ".", "~")) or name.count("/") > 1
    return (PurePosixPath(name).name or name) if local else name
