"""What the program says when it ends with an error: a line where its user can mend it, a traceback where not.

This file is light: it is imported before anything is done.
"""

import re
import signal
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, HydraException, InstantiationException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from corrigenda.errors import CorrigendaError
from corrigenda.runs.sources import PACKAGES
from corrigenda.system.files import cache_folder
from corrigenda.text.display import printable
from corrigenda.text.names import did_you_mean
from editing.registry import EDITORS
from jobs.shared.words import OWN, program, setting

SWITCH = "HYDRA_FULL_ERROR"
"""The environment variable that, set to 1, makes the program show the traceback of every error."""

ROOT = Path(__file__).resolve().parents[2]

PROJECT = (*PACKAGES, "run.py")
"""What of `ROOT` is this project's."""

PLUGINS = ("joblib", "optuna", "submitit")
"""Extras that bring a launcher or a sweeper of Hydra."""


class RunFailedError(CorrigendaError, RuntimeError):
    """A run that came to its end, but in which too much failed."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C, or another signal that ends a program, during a job; the text says how to go on."""


class _Ended(KeyboardInterrupt):
    """A signal that ends a program, where Ctrl-C would interrupt it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """In the block SIGTERM and SIGHUP do as Ctrl-C does: what is finished is kept, and how to go on is said."""

    def end(number: int, _frame: object) -> None:
        raise _Ended(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    main = threading.current_thread() is threading.main_thread()
    # Ignored ones (nohup) stay ignored, and what has a handler already keeps it.
    taken = [number for number in numbers if main and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


EXPECTED = (CorrigendaError, ValueError, OSError, MemoryError, HydraException, OmegaConfBaseException)
"""Errors that say what the user can do; any other is a mistake in the program, and is shown with its traceback."""


def describe_error(error: BaseException, arguments: Sequence[str]) -> tuple[str, int] | None:
    """What to say of an error, in one line, and the exit status; None for one that is a mistake in the program."""
    if isinstance(error, KeyboardInterrupt):
        return _line(f"interrupted; {error}" if str(error) else "interrupted"), 128 + _signal(error)
    if isinstance(error, OverrideParseException):
        return _line(_unread(error.override or "", arguments)), 2
    found = _cause(error)
    if isinstance(found, ConfigCompositionException):
        return _line(_composition(found, arguments)), 1
    chosen = _in_our_words(found)
    if not (chosen or isinstance(found, EXPECTED) or _out_of_memory(found)):
        return None
    text = str(found)
    if isinstance(found, OmegaConfBaseException):
        text = re.sub(r"^\w+ raised while resolving interpolation: ", "", text.split("\n    full_key:")[0])
    elif isinstance(found, KeyError):
        text = str(*found.args)
    elif isinstance(found, OSError) and found.strerror and found.filename is not None:
        text = f"{found.filename}: {found.strerror}{_of_the_cache(str(found.filename))}"
    elif isinstance(found, InstantiationException):
        text = _call(text)
    if not text:
        text = type(found).__name__
    return _line(text if chosen else f"{text} ({type(found).__name__}; {SWITCH}=1 shows where)"), 1


def _of_the_cache(path: str) -> str:
    """Where a file or folder is of the cache, or the cache of it: how another place is named."""
    with suppress(ValueError):  # the variable names nobody's home
        kept = cache_folder()
        if kept.is_relative_to(path) or Path(path).is_relative_to(kept):
            return f"; this is of the cache: CORRIGENDA_CACHE=FOLDER in the environment names another place than {kept}"
    return ""


def _signal(error: BaseException) -> int:
    """The signal that an interruption came from."""
    cause = error.__context__
    found = error if isinstance(error, _Ended) else cause if isinstance(cause, _Ended) else None
    return int(signal.SIGINT) if found is None else found.number


def _unread(argument: str, arguments: Iterable[str]) -> str:
    """The line on an argument that Hydra cannot read."""
    name, equals, value = argument.partition("=")
    named = re.fullmatch(r"[+~]{0,2}[A-Za-z_][\w.@/-]*", name) is not None
    if named and equals and not Path(argument).is_file():
        # The advice ends the line, so that all that follows can be typed.
        return f"{argument}: signs such as = , # [ and quotes have a meaning here; {_as_text(name, value, arguments)}"
    advice = _as_facts(argument) if _is_table(argument) else f"write NAME=VALUE ({program()} --help lists them)"
    return f"{argument}: this is no setting; {advice}"


def _as_text(name: str, value: str, arguments: Iterable[str]) -> str:
    """How a setting is typed whose value is a text, or a list of texts, whatever is in it."""
    if value[:1] + value[-1:] == "[]":
        each = [part.strip(" '\"") for part in value[1:-1].split(",")]
        return f"in quotes each of a list is one text: {setting(name, each)}"
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    if name == "data.path":
        chosen = next((each for each in arguments if re.fullmatch(r"data=\w+", each)), "data=facts")
        return f"in quotes it is one text: {chosen} {setting(name, value)}"
    return f"in quotes it is one text: {setting(name, value)}"


def _is_table(name: str) -> bool:
    return Path(name).suffix in (".csv", ".tsv", ".json", ".jsonl")


def _as_facts(path: str) -> str:
    return f"A file of facts is given as data=facts {setting('data.path', path)}"


def _line(text: str) -> str:
    return printable(" ".join(part.strip() for part in text.splitlines()))


def _cause(error: BaseException) -> BaseException:
    """The error that Hydra or OmegaConf wrapped in one of theirs."""
    wrapping = (InstantiationException, InterpolationResolutionError, ConfigCompositionException)
    cause = error.__cause__
    if isinstance(error, wrapping) and cause is not None and not isinstance(cause, OmegaConfBaseException):
        # A name or a setting that there is not is the user's; any other error in a call may be the program's.
        theirs = isinstance(cause, TypeError) and _WRONG_CALL.search(str(cause)) is not None
        return error if theirs or "Error locating target" in str(error) else _cause(cause)
    return error


_WRONG_CALL = re.compile(
    r"(\w+)\.__init__\(\) (?:got an unexpected keyword|missing \d+ required \w+) arguments?:? '(\w+)'"
)


def _call(text: str) -> str:
    """The line on a class that could not be made of its settings."""
    wrong, key = _WRONG_CALL.search(text), re.search(r"full_key: (\S+)", text)
    place = f"{key.group(1)}." if key else ""
    nowhere = re.search(r"Error locating target '([^']*)'", text)
    if nowhere is not None:
        return f"{place}_target_={nowhere.group(1)}: there is no such class; is its folder on PYTHONPATH?"
    if wrong is None:
        return text
    problem = "has no such setting" if "unexpected" in wrong.group(0) else "needs this setting"
    return f"{place}{wrong.group(2)}: {wrong.group(1)} {problem}"


def _out_of_memory(error: BaseException) -> bool:
    """Whether it is one of torch's errors of this kind, or the system's; torch is not imported for it."""
    said = str(error)
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and ("can't start new thread" in said or "can't allocate memory" in said)
    )


def _in_our_words(error: BaseException) -> bool:
    """Whether a statement of this project raised it: then it says what its user can do, whatever its type."""
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not (frames[-1].line or "").startswith("raise "):
        return False
    place = Path(frames[-1].filename)
    # The folder that holds the project's packages is site-packages where it is installed: libraries lie there, too.
    return place.is_relative_to(ROOT) and place.relative_to(ROOT).parts[0] in PROJECT


def _composition(error: ConfigCompositionException, arguments: Sequence[str]) -> str:
    """The line on a choice or a setting that there is not."""
    missing, options = getattr(error, "missing_cfg_file", None), getattr(error, "options", None)
    if missing and options is not None:
        outer = str(missing).split("/")[0]
        group, _, name = str(missing).partition("/") if outer in ("model", "data") else str(missing).rpartition("/")
        if group == "editor":
            return EDITORS.unknown(name)
        if outer == "hydra" and (extra := name.partition("_")[0]) in PLUGINS:
            return f"{group}={name} is of a package that is not installed: pip install 'corrigenda[{extra}]'"
        said = f"{group}={name}: there is no such choice; {_near(name, options)}The choices are {', '.join(options)}"
        if group == "model":
            return f"{said}. Any other model is model=own {setting('model.name', name)}"
        return f"{said}. {_as_facts(name)}" if group == "data" and _is_table(name) else said
    several = next((each for each in arguments if f" '{each}'" in str(error)), None)
    if several is not None and "override" not in str(error):  # a value with a comma in it
        name, _, value = several.partition("=")
        return f"{several}: several values are several runs, which need -m; {_as_text(name, value, arguments)}"
    key = re.search(r"Could not override '([^']+)'", str(error))
    if key is None:
        return str(error)
    return _unknown_setting(key.group(1), arguments)


def _unknown_setting(key: str, arguments: Iterable[str]) -> str:
    arguments = list(arguments)
    known = _settings_beside(key, arguments)
    if "." not in key:  # those that a job has in its short form
        known += [own for job, settings in OWN.items() if f"job={job}" in arguments for own in settings]
    place, _, name = key.rpartition(".")
    if name in known:
        return f"{key}: not all choices of this sweep have this setting; give those that have it a sweep of their own"
    hint = _near(name, known, f"{place}." if place else "")
    return f"{key}: there is no such setting; {hint or f'{program()} --cfg job lists them; '}+{key}=... adds one"


def _settings_beside(key: str, arguments: Iterable[str]) -> list[str]:
    """The settings at the place where one was looked for."""
    chosen = [each for each in arguments if re.fullmatch(r"[a-z]+=[\w-]+", each)]
    groups = {"job", *(path.name for path in (ROOT / "conf").iterdir() if path.is_dir())}
    with suppress(Exception), initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        node: Any = compose("config", [each for each in chosen if each.split("=")[0] in groups])
        for part in key.split(".")[:-1]:
            node = node[part]
        if isinstance(node, DictConfig):
            return [str(name) for name in node]
    return []


def _near(name: str, known: Iterable[str], place: str = "") -> str:
    hint = did_you_mean(name, known, place=place)
    return f"{hint} " if hint else ""
