"""run.py in this process: importing torch and transformers once, and not in each of a hundred processes.

And in processes that are there to be killed, forked from one that has imported these.
"""

import io
import logging
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import torch
from composed import add_choices, read_once
from hydra._internal.hydra import Hydra

import run

RUN = Path(run.__file__)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["run", "jobs.shared.base", "jobs.edit.job", "transformers.models.llama.modeling_llama"])


def environment(cache: Path) -> dict[str, str]:
    """What a process of the program, or this one, is given: a cache of its own, one thread, and its packages."""
    own = {"CORRIGENDA_CACHE": str(cache), "PYTHONPATH": str(RUN.parent)}
    return {**os.environ, "OMP_NUM_THREADS": "1", **own}


def call(home: Path, *arguments: str, succeeds: bool = True) -> str:
    """What ``python run.py ARGUMENTS`` says, in the folder `home`, with one thread as processes have it.

    Hydra sets logging up for each run, and an error makes it exit: both end here. It would compose the configuration
    twice, the first time only to find no ``hydra.mode`` in it: that one is left out, and so is what it read before.
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
            patch.object(Hydra, "get_mode", lambda *_, **__: None),
            patch.object(run, "add_choices", add_choices),
            read_once(),
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


def killed(home: Path, *arguments: str, when: Callable[[], bool]) -> None:
    """What ``python run.py ARGUMENTS`` does, in the folder `home` and in a process of its own, until a kill.

    The process kills itself as soon as something is on the disk and `when`, a function of a module, says so. It is
    forked from a fresh one that has imported what it needs, so that it is at work at once. It says nothing. Where the
    start of the program is what is tested, `RUN` is started.
    """
    process = FORKS.Process(target=_killed, args=(when, home, *arguments))
    process.start()
    try:
        process.join(300)
        assert process.exitcode == -signal.SIGKILL
    finally:
        process.kill()


def _killed(when: Callable[[], bool], home: Path, *arguments: str) -> None:
    fsync = os.fsync

    def and_then(descriptor: int) -> None:
        fsync(descriptor)
        if when():
            os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(os, "fsync", and_then):
        call(home, *arguments)
