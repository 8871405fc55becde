"""What stands between a prompt and what follows it: a space, or nothing."""

from __future__ import annotations

import re
import unicodedata

from corrigenda.texts import unspaced

_STRAIGHT = "\"'`*"
"""Signs that open and close alike (of Markdown, too)."""
_ELISION = re.compile(r"\b(?:[cdjlmnst]|(?:jus|lors|puis|quoi)?qu|[dns]?(?:all|ell|ull)|un)['’]$", re.IGNORECASE)
"""French and Italian words that lose their last vowel: "l'", "d'", "dell'"."""
_BINDS_LEFT = ",;:!?…%°"


def joint(prompt: str, target: str) -> str:
    """What stands between a prompt and a target that follows it: "" or one space.

    Nothing, where

    - the target begins with white space: it says itself what stands there, word for word;
    - the prompt ends in white space: the line break of a chat template, an indentation;
    - the prompt ends in a script that writes no spaces between words (Chinese, Japanese, Thai, ...), or has such a
      script in it and the target begins with it;
    - the prompt ends in an opening bracket or quotation mark, a currency sign with no number before it, "@", an elision
      ("l'"), or in a sign that joins ("-", "/", "_", "#", "=", "&", "~") with no space before it (and "#" or "~" at a
      word's beginning);
    - the target begins with a closing bracket, or punctuation that belongs to the word before it.

    Else a space. Where neither is right, let the target begin at the last space.
    """
    last, before, first = prompt[-1:], prompt[-2:-1], target[0]
    if not last or first.isspace() or last.isspace():
        return ""
    if unspaced(last) or (unspaced(first) and any(map(unspaced, prompt))):
        return ""
    return "" if _opens(prompt, last, before) or _belongs_left(first, target[1:2]) else " "


def joined(prompt: str, target: str) -> str:
    """A prompt with the target that follows it."""
    return prompt + joint(prompt, target) + target


def _opens(prompt: str, last: str, before: str) -> bool:
    """Whether what follows a prompt's last character is written up to it."""
    category, alone = unicodedata.category(last), not before or before.isspace()
    if category in ("Ps", "Pi") or last in "¿¡@" or _ELISION.search(prompt):
        return True
    if last in _STRAIGHT:
        ahead = prompt.rstrip(last)[-1:]
        opening = not ahead or ahead.isspace() or ahead in "=:,|>" or unicodedata.category(ahead) in ("Ps", "Pi")
        return opening and (last == "'" or re.sub(rf"{re.escape(last)}+", last, prompt).count(last) % 2 == 1)
    if category == "Sc":
        return not prompt[:-1].rstrip()[-1:].isdigit()
    if last in "#~":
        return alone or not before.isalnum()
    return last == "_" or (not alone and (category == "Pd" or last in "/\\=&")) or (last in "/\\" and not before)


def _belongs_left(first: str, second: str) -> bool:
    """Whether a target begins with what is written up to the word before it."""
    if unicodedata.category(first) == "Pe" or first in _BINDS_LEFT:
        return True
    return first == "." and not second.isalnum()
