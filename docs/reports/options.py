"""The options of first steps, and their time."""

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Data = Mapping[str, Any]  # JSON values by name
Options = argparse.Namespace
ROOT = Path(__file__).resolve().parents[2]
OUTPUTS, FILES = ROOT / "outputs", ROOT.parent / "shared" / "data"
"""Where runs are kept, and where the files of facts lie."""
COMMON: Mapping[str, dict[str, Any]] = {  # options that several commands have; with --anew see `kept`
    "--model": {"default": "smollm2-135m"},
    "--files": {"type": Path, "default": FILES, "help": "folder of the data files"},
    "--minutes": {"type": float, "help": "stop after so long, to go on another time"},
    "--write": {"action": "store_true", "help": "run nothing, write what there is"},
    "--anew": {"action": "store_true", "help": "keep nothing of the data file that there is"},
    "overrides": {"nargs": "*", "help": "of the configuration, for all runs, e.g. eval.max_new_tokens=10"},
}


def asking(*common: str, **own: Any) -> Callable[[argparse.ArgumentParser], None]:
    """What adds options to a first step: some of `COMMON`, and own ones.

    By name the default, alone or with what help says. Its type is the option's; False is for a flag.
    """

    def add(parser: argparse.ArgumentParser) -> None:
        for name in common:
            parser.add_argument(name, **COMMON[name])
        for name, told in own.items():
            default, told = told if isinstance(told, tuple) else (told, None)
            of = Path if isinstance(default, Path) else type(default)
            given: dict[str, Any] = {"action": "store_true"} if default is False else {"default": default, "type": of}
            parser.add_argument(f"--{name.replace('_', '-')}", help=told, **given)

    return add


def some_of(known: Iterable[str]) -> tuple[str, str]:
    """An option that takes some of these names."""
    return "", f"comma-separated, of {', '.join(known)}; by default all"


class NotFinishedError(Exception):
    """The time was up before all was done; what is done is kept."""


def deadline_of(arguments: Options) -> float | None:
    """When the time of --minutes is up, by the monotonic clock; None without a limit."""
    return None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes


def go_on(deadline: float | None) -> None:
    """Raises `NotFinishedError` where the time is up."""
    if deadline is not None and time.monotonic() > deadline:
        raise NotFinishedError
