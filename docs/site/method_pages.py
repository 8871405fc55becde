"""A page for each method: what it is, when to use it, what it costs, its formula, its source, its settings.

Nothing is said twice: names and aims are the editors' own declarations, formulas and settings those of the docstrings,
defaults those of the settings classes, presets those of ``conf/editor/``, figures those of the leaderboard. When to use
a method, and what it costs, is said in ``docs/methods.md``, in a section with the method's name.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

from corrigenda.settings.documented import settings
from editing import EDITORS
from editing.configuration import preset_values
from editing.registry import declaration

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ROOT / "docs" / "methods.md"
CONFIGURATIONS = ROOT / "conf" / "editor"
LEADERBOARD = ROOT / "docs" / "data" / "leaderboard.json"
HEADING = re.compile(r"^### `([a-z0-9_]+)`$", re.MULTILINE)


def nav() -> list[dict[str, str]]:
    """The entries of the navigation."""
    return [{name: _uri(name)} for name in EDITORS]


def pages() -> dict[str, str]:
    """The pages, by their place on the site."""
    return {_uri(name): page(name) for name in EDITORS}


def overview(markdown: str) -> str:
    """The page of all methods, with links from the headings to the methods' own pages."""
    return HEADING.sub(lambda found: f"### [`{found[1]}`]({_uri(found[1])}) {{ #{found[1]} }}", markdown)


def texts() -> dict[str, str]:
    """What ``docs/methods.md`` says of each method."""
    parts = HEADING.split(TEXTS.read_text(encoding="utf-8"))
    sections = zip(parts[1::2], parts[2::2], strict=True)
    return {name: re.split(r"^## ", text, flags=re.MULTILINE)[0].strip() for name, text in sections}


def page(name: str) -> str:
    """One method's page.

    Raises:
        KeyError: ``docs/methods.md`` has no section of this name.
    """
    if name not in texts():
        raise KeyError(f"docs/methods.md has no section '### `{name}`': say there when to use it, and what it costs")
    base, editor = EDITORS.base(name), EDITORS[name]
    text = re.sub(r"\]\((?!https?:)", "](../", texts()[name])  # a folder below docs/
    parts = [f"# {name}", _summary(name), text, _calls(name)]
    if base == name:
        parts += [
            f"## What it computes\n\n{_said(editor)}",
            f"## Source\n\n{_source(editor)}",
            f"## Settings\n\nThose of `{editor.__module__}.{editor.__qualname__}`; on the command line with "
            f"`editor.` before them.\n\n{_table(('setting', 'default', 'what it is'), _settings(editor))}",
        ]
    else:
        parts.append(
            f"## Settings\n\nThis is [`{base}`]({base}.md) with other settings. What it computes is said there."
        )
        if differences := list(_differences(name, editor)):
            parts.append(_table(("setting", f"`{base}`", f"`{name}`"), differences))
        else:
            parts.append("Every setting is the same: it is another name.")
    parts += [_measured(name), "What it is checked against: [Editing](../editing.md#editors)."]
    return "\n\n".join(filter(None, parts)) + "\n"


def _uri(name: str) -> str:
    return f"methods/{name}.md"


def _configuration(name: str) -> str:
    return (CONFIGURATIONS / f"{name}.yaml").read_text(encoding="utf-8")


def _summary(name: str) -> str:
    """What the editor is for, as it declares; of a preset, the comment at the head of its file."""
    if EDITORS.base(name) == name:
        aim = declaration(EDITORS[name]).aim
        return f"{aim[:1].upper()}{aim[1:]}."
    head = re.match(r"(?:#.*\n)+", _configuration(name))
    return "" if head is None else re.sub(r"^# ?", "", head[0], flags=re.MULTILINE).strip()


def _calls(name: str) -> str:
    editor = EDITORS[name]
    python = f"from editing import {editor.__qualname__}" if EDITORS.base(name) == name else ""
    return f"```sh\ncorrigenda editor={name}\n```" + (f"\n\n```python\n{python}\n```" if python else "")


def _sections(documented: Any) -> list[Any]:
    """The sections of a class's own docstring."""
    own = vars(documented).get("__doc__") or ""
    if own.startswith(f"{documented.__name__}("):  # what dataclasses write where nothing is said
        return []
    return griffe.Docstring(inspect.cleandoc(own)).parse("google", warnings=False)


def _said(editor: type) -> str:
    """What a class's docstring says, without its lists of attributes and errors."""
    return "\n\n".join(
        section.value for section in _sections(editor) if section.kind is griffe.DocstringSectionKind.text
    )


def _source(editor: type) -> str:
    """The docstring of the method's file: what it is in a line, and where it comes from."""
    return inspect.cleandoc(sys.modules[editor.__module__].__doc__ or "")


def _differences(name: str, editor: type) -> Iterator[tuple[str, str, str]]:
    """A row for each setting of a preset that is not the class's own."""
    defaults = {setting.name: setting.default for setting in settings(editor)}
    for key, value in preset_values(name).items():
        if key != "name":
            yield f"`{key}`", f"`{defaults[key]}`", f"`{value}`"


def _settings(editor: type) -> Iterator[tuple[str, str, str]]:
    """A row for each setting: its name, its default, what it is. Those of an object are named with a dot."""
    for name, default, meaning in settings(editor):
        yield f"`{name}`", default if default in ("", "to be given") else f"`{default}`", meaning


def _table(heads: tuple[str, ...], rows: Any) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _measured(name: str) -> str:
    """Seconds and memory on the leaderboard, where the method has a row."""
    rows = []
    for board in json.loads(LEADERBOARD.read_text(encoding="utf-8"))["figures"]["view"]["boards"]:
        for row in board["rows"]:
            seconds = row["cells"].get("seconds_per_edit") if row["label"] == name else None
            if seconds is not None:
                memory = row["cells"].get("peak_memory_mb")
                shown = "" if memory is None else f"{memory['value']:.0f}"
                rows.append((board["title"], str(row["n_facts"]), f"{seconds['value']:.2f}", shown))
    if not rows:
        return "## Measured\n\nIt is not on [the leaderboard](../leaderboard.md)."
    table = _table(("table", "facts", "seconds an edit", "peak memory, MB"), rows)
    head = (
        "Of [the leaderboard](../leaderboard.md), which says on which machine and what the seconds hold, and has more."
    )
    return f"## Measured\n\n{head}\n\n{table}"
