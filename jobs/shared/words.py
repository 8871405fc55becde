"""The short form of a command: ``ask "A prompt" edit=FOLDER`` for ``job=ask job.prompt='A prompt' job.edit=FOLDER``.

A bare word in the first place is the name of a job. Some jobs have *own settings*, which then need no ``job.`` before
them, and the first of which needs no name. Texts are put into quotes here, so that an ``=``, a comma or a quote in a
prompt is no part of Hydra's grammar. This is the one place that knows the short form; Hydra sees only the long one.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

OWN: Mapping[str, Mapping[str, Literal["text", "path", "other"]]] = {
    "ask": {"prompt": "text", "edit": "path", "max_new_tokens": "other"},
    "verify": {
        **{"list": "path", "url": "text", "model": "text", "via": "other", "key": "text", "send": "other"},
        **{"before": "path", "before_model": "text", "before_key": "text", "folder": "path"},
        **dict.fromkeys(("max_tokens", "kept_tokens", "timeout", "retries", "parallel"), "other"),
        **dict.fromkeys((f"accept.{rule}" for rule in ("efficacy", "paraphrases", "preservation", "bleed")), "other"),
    },
    "export": {
        **{"edit": "path", "to": "path"},
        **dict.fromkeys(("form", "rank", "dtype", "merge", "density"), "other"),
    },
    "studio": {"list": "path", "folder": "path", "host": "text", "port": "other", "open": "other"},
}
"""By job its own settings, the one that needs no name first. Texts and paths are put into quotes; a path may be in
Hydra's quotes already."""


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


def long_form(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command line as Hydra reads them; those that begin with no job's name stay as they are."""
    if not arguments or re.fullmatch(r"[A-Za-z_]\w*", arguments[0]) is None:
        return list(map(_at_home, arguments))
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
        found.append(f"job.{next(iter(own))}={quote_text(rest.pop(0))}")
    for argument in rest:
        key = _key(argument)
        if key is None or key not in own:
            found.append(_at_home(argument))
            continue
        value = argument.partition("=")[2]
        found.append(
            f"job.{key}={quote_text(value) if own[key] != 'other' and not _hydras(value, own[key]) else value}"
        )
    return found


def _hydras(value: str, kind: str) -> bool:
    """Whether a value is written in Hydra's grammar: a list (edit=[first,second]), and a path in quotes."""
    return value.startswith("[") or (kind == "path" and isinstance(_parsed(value), QuotedString))


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


def quote_text(text: str, quote: Quote = Quote.single) -> str:
    """A text as a value on Hydra's command line that stands for exactly this text."""
    # "${" would be a reference to another setting: a backslash before it says that it is none, and backslashes that
    # stand before it already are doubled.
    plain = re.sub(r"(\\*)\$\{", lambda match: rf"{match[1] * 2}\${{", text)
    return QuotedString(plain, quote).with_quotes()


def setting(name: str, value: str | Path | Sequence[str | Path]) -> str:
    """A setting as a message says it: typed into a shell like this, the program reads exactly this value."""
    if isinstance(value, (str, Path)):
        text = str(value)
        return f"{name}={_for_shell(text if _reads(text) else quote_text(text, Quote.double))}"
    listed = ",".join(quote_text(str(one), Quote.double) for one in value)
    return f"{name}={_for_shell(f'[{listed}]')}"


def _for_shell(text: str) -> str:
    """A word of a shell's command line; control characters are written as escapes, for a message is one line."""
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    return character if character.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def _reads(text: str) -> bool:
    """Whether Hydra reads a text, where it stands behind a setting's name, as that text."""
    found = _parsed(text)
    return isinstance(found, str) and found == text and "${" not in text and text != "???"


def _parsed(value: str) -> object:
    """What Hydra's grammar makes of what stands behind a setting's name; None where it is wrong there."""
    try:
        return OverridesParser.create().parse_override(f"name={value}")._value
    except HydraException:
        return None


def _at_home(argument: str) -> str:
    """A setting, with the user's home in place of a ``~/`` that a path begins with: Hydra cannot read that."""
    name, equals, value = argument.partition("=")
    if not equals or not value.startswith("~/") or "," in value:
        return argument
    return f"{name}={quote_text(os.path.expanduser(value))}"


def _key(argument: str) -> str | None:
    name, equals, _ = argument.partition("=")
    return name if equals else None
