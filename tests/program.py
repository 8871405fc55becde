"""run.py in this process: importing torch and transformers once, and not in each of a hundred processes."""

import io
import logging
import os
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import torch

import run

RUN = Path(run.__file__)


def environment(cache: Path) -> dict[str, str]:
    """What a process of the program, or this one, is given: a cache of its own, one thread, and its packages."""
    return {**os.environ, "CORRIGENDA_CACHE": str(cache), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(RUN.parent)}


def call(home: Path, *arguments: str, succeeds: bool = True) -> str:
    """What ``python run.py ARGUMENTS`` says, in the folder `home`, with one thread as processes have it.

    Hydra sets logging up for each run, and an error makes it exit: both end here.
    """
    said = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    folder, threads = Path.cwd(), torch.get_num_threads()
    torch.set_num_threads(1)
    os.chdir(home)
    status: object = 0
    try:
        with (
            patch.dict(os.environ, environment(home / "cache")),
            patch.object(sys, "argv", [str(RUN), *arguments]),
            redirect_stdout(said),
            redirect_stderr(said),
            warnings.catch_warnings(),
        ):
            run.main()
    except SystemExit as stop:
        status = stop.code
    finally:
        os.chdir(folder)
        torch.set_num_threads(threads)
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)
    assert (status in (0, None)) == succeeds, said.getvalue()
    return said.getvalue()
