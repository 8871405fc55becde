"""Texts as people are shown them: cut where they are long, and without what acts on a terminal or a spreadsheet."""

import re

# Control characters but tab and line break, line separators, what changes the direction of the text that follows (its
# end is not bound to the text's own), and halves of characters, which no output can encode.
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# What a spreadsheet takes for the beginning of a formula, the wide forms as well (OWASP, CSV Injection).
_MARK = "'"
_FORMULA = "=+-@\t\r\n\uff0b\uff0d\uff1d\uff20"


def printable(text: str, lines: bool = False) -> str:
    """A text in which nothing acts on a terminal: escape sequences, and line breaks but for `lines`, are shown."""
    shown = _ACTING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return shown if lines else shown.replace("\n", "\\n")


def in_spreadsheet(cell: object) -> object:
    """A cell of a CSV file that no spreadsheet computes: ``'`` stands before a text that begins like a formula.

    It stands before one that begins with ``'``, too, so that the text is always what follows it. Numbers, and texts
    that are numbers, stay what they are.
    """
    if not isinstance(cell, str):
        return cell
    return f"{_MARK * _begins_formula(cell)}{printable(cell)}"


def _begins_formula(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.startswith((*_FORMULA, _MARK))
    return False


_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u2e80-\u312f\u31a0-\u31bf\u31f0-\ua4cf"
    "\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff9f\U00020000-\U0003ffff]"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, Tai scripts, Chinese with its punctuation, Kana, Yi; full-width signs."""


def unspaced(character: str) -> bool:
    """Whether a character is of a script that writes no spaces between words. Korean is none: it does."""
    return bool(_UNSPACED.match(character))


def shortened(text: str, length: int = 100) -> str:
    """A text of at most so many characters; one that is cut ends in "..."."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def on_one_line(text: str, length: int = 60) -> str:
    """A text without line breaks, of at most so many characters."""
    return shortened(" ".join(text.split()), length)


def quoted(text: str, most: int = 60) -> str:
    """A text in quotation marks, of which at most so many characters are shown."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}..."


def half_of_a_character(text: str) -> str:
    """What is wrong with a text that no file can hold; empty where all is well."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"holds half of a character (a lone surrogate) at {error.start}, which no file can hold: {text!a:.100}"
    return ""
