"""Whether an answer begins with a target, or holds it, as whole words: in any script.

A word is a run of letters, digits and combining marks. In a script that writes no spaces between words every character
counts as one, and so does a run of Katakana: where such a word ends cannot be seen. Signs that make another word belong
to it ("C++", "C#", "A-", "-5", "1.5"). Other signs are words where the target has one: "$ 30" is not "30 %". Case, the
encoding of accents, wide forms, commas between thousands and the article at a text's beginning do not count.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from corrigenda.texts import unspaced

_ARTICLES = {"a", "an", "the"}
_OTHER_MEANING = ("<super>", "<sub>", "<fraction>", "<circle>")
"""Forms whose plain characters mean something else: "m²", "½"."""
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufe0e\ufe0f\ufeff]")
_KATAKANA = re.compile("[\u30a1-\u30ff\u31f0-\u31ff]+")
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*(?:\.\d+)+|\d+,\d{1,2}|\d+)(?![\w,]\d|\w)")
_SUFFIX = re.compile(r"[+#]+(?!\w)|(?<=\b\w)-(?!\w)|(?<=\b\w\w)-(?!\w)")
"""Of a word: "C++", "C#"; of a short one "A-", "AB-"."""
_PARTICLES = re.compile(
    "(?:은|는|이|가|을|를|의|에|에서|에게|한테|께|로|으로|와|과|랑|도|만|까지|부터|보다|처럼|나|이나|란|이란|라고|이라고"
    "|다|이다|입니다|이며|이고|였다|이었다|였습니다|이었습니다|야|이야|요|예요|이에요)+"
)
"""What Korean writes up to a noun: particles, and forms of "to be"."""


def matches_strictly(answer: str, targets: Sequence[str], other: str | None = None) -> bool:
    """Whether the answer starts with one of the targets, as whole words.

    Args:
        answer: the answer.
        targets: what counts as right.
        other: what is no target, though it may have one in it: "Rome, Georgia" is not "Rome".
    """
    return any(
        0 in _places(answer, target) and not (0 in _within(target, other) and 0 in _places(answer, other or ""))
        for target in targets
    )


def matches_leniently(answer: str, targets: Sequence[str], other: str | None = None) -> bool:
    """Whether the answer contains one of the targets, as whole words in a row; arguments as of `matches_strictly`."""
    return any(
        len(_places(answer, target)) > len(_within(target, other)) * len(_places(answer, other or ""))
        for target in targets
    )


def _within(target: str, other: str | None) -> list[int]:
    """Where a target stands in a longer text."""
    return [] if other is None or _places(target, other) else _places(other, target)


def _places(answer: str, target: str) -> list[int]:
    """At which of the answer's words the target's stand; a target of punctuation alone is looked for as it is."""
    wanted, found = words(target), words(answer)
    if not wanted:
        place = answer.strip().find(target.strip()) if target.strip() else -1
        return [place] if place >= 0 else []
    if not any(map(_is_sign, wanted)):
        found = [word for word in found if not _is_sign(word)]
    if without_article(wanted):  # a target that is an article and no more is compared with all
        wanted, found = without_article(wanted), without_article(found)
    last = len(wanted) - 1
    return [
        place
        for place in range(len(found) - last)
        if found[place : place + last] == wanted[:last] and _is_word(found[place + last], wanted[last])
    ]


def _is_word(found: str, wanted: str) -> bool:
    """Whether a word is the one that is wanted, or that one with Korean particles."""
    return found == wanted or (found.startswith(wanted) and bool(_PARTICLES.fullmatch(found, len(wanted))))


def without_article(found: list[str]) -> list[str]:
    """Words without the article that they begin with. No other: "Hepatitis A" is not "Hepatitis B"."""
    return found[1:] if found and found[0] in _ARTICLES else found


def words(text: str) -> list[str]:
    """The words and signs of a text, in one form each."""
    text = _INVISIBLE.sub("", _one_form(text))
    found: list[str] = []
    place = 0
    while place < len(text):
        end = place + 1
        character, number = text[place], _NUMBER.match(text, place)
        if number and text[place - 1 : place] != "," and not _in_word(text[place - 1 : place]):
            end = number.end()
            found.append(re.sub(r",(?=\d{3})", "", number[0]))
        elif katakana := _KATAKANA.match(text, place):
            end = katakana.end()
            found.append(katakana[0])
        elif _in_word(character):
            alone = unspaced(character)
            while end < len(text) and _in_word(text[end]) and _goes_on(text[end], alone):
                end += 1
            suffix = None if alone else _SUFFIX.match(text, end)
            end = suffix.end() if suffix else end
            found.append(text[place:end])
        elif _is_sign(character):
            found.append(character)
        place = end
    return found


def _one_form(text: str) -> str:
    """A text without case and encodings: NFKC, but for forms that mean something else."""
    kept = (
        each if unicodedata.decomposition(each).startswith(_OTHER_MEANING) else unicodedata.normalize("NFKC", each)
        for each in text
    )
    return unicodedata.normalize("NFC", "".join(kept)).casefold().replace("\u2212", "-")


def _in_word(character: str) -> bool:
    return character == "_" or unicodedata.category(character or " ")[0] in "LNM"


def _goes_on(character: str, alone: bool) -> bool:
    """Whether a word goes on with a character; in a script without spaces with combining marks only."""
    return unicodedata.category(character)[0] == "M" if alone else not unspaced(character)


def _is_sign(word: str) -> bool:
    """Currency, mathematical and other signs; no punctuation, and no accent that stands alone."""
    return word == "%" or (len(word) == 1 and unicodedata.category(word) in ("Sc", "Sm", "So"))
