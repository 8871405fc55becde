"""The program: takes a model and does a job with it, by default edits facts, scores the edits, prints and stores both.

    python run.py [job] [group=choice ...] [key=value ...]        (`python run.py --help` lists them)

`job=` says what is done; each job is a file in `jobs/`, the only place where locators, editors and the evaluation meet.
Installed, the program is called `corrigenda` (`corrigenda/__main__.py`).
"""

import functools
import io
import logging
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from jobs.shared.errors import SWITCH, describe_error, interrupt_on_signals
from jobs.shared.help import help_on
from jobs.shared.job import new_folder, run_folder
from jobs.shared.outside import add_choices, importable_last
from jobs.shared.words import flags_last, long_form, version

for resolver in (new_folder, run_folder):
    OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True, use_cache=True)

logger = logging.getLogger(__name__)

# The processes that launchers start find this project's packages, also in a folder that has a "conf" of its own.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))


ONLY_LISTED = {"--help", "-h", "--hydra-help", "--shell-completion", "-sc"}
"""Flags by which choices are listed and nothing is done."""


def task(config: DictConfig) -> float | None:
    """Does the job that the configuration names; gives what `objective` asks for."""
    from jobs.shared.base import start  # seconds to import, which `--help` does not need

    return start(config)


def main() -> None:
    """The program: `task` with the configuration of the command line.

    It exits with 1 after an error (2 where the command could not be read; 130 after Ctrl-C, 143 after SIGTERM, 129
    after SIGHUP), of which it says one line. HYDRA_FULL_ERROR=1 shows the traceback instead.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what an output cannot encode is shown as an escape
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:] == ["--version"]:  # Hydra's own answer is Hydra's version
        sys.stdout.write(f"{version()}\n")
        return
    asked, given = os.environ.get(SWITCH), sys.argv
    os.environ[SWITCH] = "1"  # Hydra lets errors pass as they are
    sys.argv = [given[0], *flags_last(long_form(given[1:]))]  # where Hydra reads them
    errors: list[Exception] = []

    @functools.wraps(task)
    def kept(config: DictConfig) -> float | None:
        try:
            return task(config)
        except Exception as error:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                # When all runs have ended Hydra says in which of them it was; but of the first alone that failed.
                said = describe_error(error, sys.argv[1:])
                logger.error(said[0] if said else repr(error), exc_info=said is None)
                raise
            errors.append(error)
            return None

    try:
        if help_on(given[1:]):
            return
        add_choices(names_alone=bool(ONLY_LISTED.intersection(sys.argv)))
        with importable_last(Path.cwd()), interrupt_on_signals():
            hydra.main(version_base="1.3", config_path="conf", config_name="config")(kept)()
        if errors:
            raise errors[0]
        sys.stdout.flush()
    except BrokenPipeError:  # who reads the output has seen enough
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # 128 + SIGPIPE, as a shell says it
    except (Exception, KeyboardInterrupt) as error:
        said = None if asked == "1" else describe_error(error, sys.argv[1:])
        if said is None:
            raise
        line, status = said
        sys.stderr.write(f"{line}\n")
        sys.exit(status)
    finally:
        sys.argv = given
        os.environ.pop(SWITCH)
        os.environ.update({} if asked is None else {SWITCH: asked})


if __name__ == "__main__":
    # Not the functions of __main__ but those of the module: other processes find them there by name (launchers).
    import run

    with warnings.catch_warnings():
        run.main()
