"""The command ``corrigenda``, and ``python -m corrigenda``: what ``python run.py`` does, from any folder.

A user's folder may have an ``eval.py``, a ``conf/`` or a ``run.py``: so each of the project's top-level names is first
taken from where this file is installed. It is the one file of the core that names what lies above it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = ("conf", "editing", "eval", "jobs", "locate", "run")
"""The top-level names of the project, besides this package's own."""


def take_own_packages(root: Path) -> None:
    """Imports the project's top-level packages and modules from one folder, wherever else such names are found."""
    sys.path.insert(0, str(root))
    try:
        for name in NAMES:
            importlib.import_module(name)
    finally:
        sys.path.remove(str(root))


def main() -> None:
    """The program, as `run.main`."""
    if not getattr(sys.flags, "safe_path", False):
        # ``python -m`` puts the folder where it is called first; it comes last again before anything of it is used.
        sys.path[:] = [place for place in sys.path if place not in ("", str(Path.cwd()))]
    take_own_packages(Path(__file__).resolve().parents[1])
    from run import main as program

    program()


if __name__ == "__main__":
    main()
