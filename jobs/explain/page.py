"""The page of a fact: one self-contained file, with grids to hover, to click and to walk over by the keyboard."""

from collections.abc import Mapping
from typing import Any

from corrigenda.text.display import printable
from eval.measurement import finite
from eval.templating import environment
from eval.verification.page import figures
from jobs.explain.answers import ERASED, KINDS
from jobs.explain.parts import PARTS
from jobs.explain.prose import ABOUT, TITLE

DIGITS = 7
"""Significant digits of the figures in a page; that is what float32 has."""


def page(explanation: Mapping[str, Any]) -> str:
    """The page of what `jobs.explain.explanation.Explanation.to_dict` gives.

    It loads nothing. It is light or dark as the reader's system is, until its switch says otherwise.
    """
    sections = [
        {"name": name, "title": part.title, "about": part.about, "sides": explanation["parts"][name]}
        for name, part in PARTS.items()
    ]
    once = {"name": "written", "title": TITLE, "about": ABOUT, "sides": {"edit": explanation["written"]}}
    return (
        environment("jobs.explain")
        .get_template("fact.html.j2")
        .render(
            said=explanation,
            data=_shown(finite(explanation)),
            sections=[once, *sections],
            kinds=KINDS,
            erased=ERASED,
            figures=figures(explanation),
        )
    )


def _shown(value: Any) -> Any:
    """A nested value with its figures at `DIGITS` significant digits, and without control characters in its texts."""
    if isinstance(value, Mapping):
        return {key: _shown(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(part) for part in value]
    if isinstance(value, str):
        return printable(value, lines=True)
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
