"""The short form of a command: ``ask "A prompt" edit=FOLDER`` for ``job=ask job.prompt='A prompt' job.edit=FOLDER``.

A bare word in the first place is the name of a job. Some jobs have *own settings*, which then need no ``job.`` before
them, and the first of which needs no name. Texts are put into quotes here, so that an ``=``, a comma or a quote in a
prompt is no part of Hydra's grammar. This is the one place that knows the short form; Hydra sees only the long one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

OWN: Mapping[str, Mapping[str, bool]] = {
    "ask": {"prompt": True, "edit": True, "max_new_tokens": False},
    "export": {"edit": True, "to": True, "form": False},
}
"""By job its own settings, the one that needs no name first; and whether each is a text, which is put into quotes."""


_SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@]*=\S*")
"""What is taken for a setting and not for the text after a job's name; such a text is given as ``prompt=...``."""


_WITH_VALUE = (
    *("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--cfg", "-c", "--info", "-i", "--package", "-p", "--experimental-rerun"),
)
"""Hydra's flags whose value is the next argument."""


def program() -> str:
    """How the program was called, for messages that say what to type."""
    called = Path(sys.argv[0]).name
    return {"run.py": "python run.py", "__main__.py": "python -m corrigenda"}.get(called, "corrigenda")


def version() -> str:
    """Which version of the project this is, for ``--version``."""
    try:
        return f"corrigenda {metadata.version('corrigenda')}"
    except metadata.PackageNotFoundError:
        return "corrigenda, from a checkout that is not installed"


def spelt_out(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command line as Hydra reads them.

    Args:
        arguments: without the program's name; any that do not begin with a job's name are given back as they are.
    """
    if not arguments or re.fullmatch(r"[A-Za-z_]\w*", arguments[0]) is None:
        return list(arguments)
    if arguments[0] == "help":
        return ["--help", *arguments[1:]]
    job, rest = arguments[0], list(arguments[1:])
    own = OWN.get(job, {})
    found = [f"job={job}"]
    if (
        own
        and rest
        and not rest[0].startswith("-")
        and _SETTING.fullmatch(rest[0]) is None
        and _key(rest[0]) not in own
    ):
        found.append(f"job.{next(iter(own))}={quoted(rest.pop(0))}")
    for argument in rest:
        key = _key(argument)
        if key is None or key not in own:
            found.append(argument)
            continue
        value = argument.partition("=")[2]
        # A list is Hydra's own: edit=[first,second].
        found.append(f"job.{key}={quoted(value) if own[key] and not value.startswith('[') else value}")
    return found


def flags_last(arguments: Sequence[str]) -> list[str]:
    """The same arguments, the settings first: Hydra would not know a setting that stands behind a flag between two."""
    settings: list[str] = []
    flags: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            settings.append(argument)
            continue
        flags.append(argument)
        if argument in _WITH_VALUE and rest and not rest[0].startswith("-"):
            flags.append(rest.pop(0))
    return settings + flags


def quoted(text: str) -> str:
    """A text as a value on Hydra's command line that stands for exactly this text."""
    # "${" would be a reference to another setting: a backslash before it says that it is none, and backslashes that
    # stand before it already are doubled.
    plain = re.sub(r"(\\*)\$\{", lambda match: rf"{match[1] * 2}\${{", text)
    return QuotedString(plain, Quote.single).with_quotes()


def _key(argument: str) -> str | None:
    name, equals, _ = argument.partition("=")
    return name if equals else None
