"""Texts as messages show them: cut where they are long, since prompts and targets may be pages."""

from __future__ import annotations


def shortened(text: str, length: int = 100) -> str:
    """A text of at most so many characters; one that is cut ends in "..."."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def on_one_line(text: str, length: int = 60) -> str:
    """A text without line breaks, of at most so many characters."""
    return shortened(" ".join(text.split()), length)


def quoted(text: str, most: int = 60) -> str:
    """A text in quotation marks, of which at most so many characters are shown."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}..."
