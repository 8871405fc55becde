"""How the pages of figures write them: templates of `docs/templates`, and what stands in these.

A template holds the prose, in Markdown; the report gives it the figures. ``{% filter wrap %}`` breaks running text into
lines of a length that can be read, ``{% filter line %}`` makes one line of it, ``{{ share|f(".1f") }}`` writes a number
as Python's `format` does, and ``{{ provenance }}`` is how the figures were made.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pages import DOCS, provenance

from corrigenda.system.files import write_text
from eval.metrics.unit import Unit

TEMPLATES = DOCS / "templates"
ALPHA = 0.05
"""A difference is told apart from none where p, corrected for all tests of its table, is below this."""


def written(
    name: str, script: str, shown: Callable[[Mapping[str, Any]], Mapping[str, Any]], timed: bool = False
) -> Callable[[Mapping[str, Any], Path], list[Path]]:
    """The second step of a report whose page is a template and figures: docs/NAME.md.

    Args:
        name: of the page and of its template.
        script: the command's file.
        shown: what the template shows, from the data.
        timed: whether the page has seconds.
    """

    def page(data: Mapping[str, Any], docs: Path) -> list[Path]:
        path = docs / f"{name}.md"
        told = "\n".join(provenance(name, data, script, timed)[1:])
        write_text(path, rendered(name, {**shown(data), "provenance": told}))
        return [path]

    return page


def rendered(name: str, shown: Mapping[str, Any]) -> str:
    """The text that a template gives; a name that it lacks is an error."""
    return _environment().get_template(f"{name}.md").render(shown).rstrip() + "\n"


@cache
def _environment() -> Environment:
    """Pages are Markdown of our own figures: nothing is escaped."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters = {"wrap": wrapped, "line": line, "f": format, "chance": chance, "columns": columns, "short": short}
    found.filters |= filters
    return found


def wrapped(text: str, indent: str = "") -> str:
    """Running text in lines of a length that can be read; `indent` stands before all but the first."""
    return "\n".join(
        textwrap.wrap(text, 118, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    ) + "\n" * text.endswith("\n")


def line(text: str) -> str:
    """Running text in a single line."""
    return " ".join(text.split()) + "\n"


def paragraph(*parts: str) -> list[str]:
    """The lines of running text."""
    return wrapped(" ".join(parts)).splitlines()


def columns(heads: list[str]) -> str:
    """The head of a table."""
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"


def chance(p: float) -> str:
    """A p-value."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def short(value: float) -> str:
    """A number of three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def cell(values: Mapping[str, float | None] | None, unit: Unit) -> str:
    """A figure "after" with its interval, from "low" to "high"; empty where there is none."""
    if values is None or values["after"] is None:
        return ""
    shown = unit.text(values["after"])
    if values["low"] is not None and values["high"] is not None:
        shown += f" [{unit.text(values['low'])}, {unit.text(values['high'])}]"
    return shown
