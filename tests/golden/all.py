"""All golden files by name, and how each one's values are made anew: in an empty folder, with a cache of its own."""

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from golden import editors, locators, measures, names

MAKERS: Mapping[str, Callable[[Path], Any]] = {**editors.MAKERS, **locators.MAKERS, **measures.MAKERS, **names.MAKERS}


def made(name: str) -> Any:
    """A file's values as they are now."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, {"CORRIGENDA_CACHE": f"{folder}/cache"}),
        patch.object(os, "fsync"),  # nothing has to survive a loss of power
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)
        return MAKERS[name](Path(folder))
