"""What stands between a prompt and what follows it: a space, or nothing."""

import re
import unicodedata

from corrigenda.text.display import unspaced

# What ends a word or a clause, a closing bracket or quotation mark, "'s"; but ".NET", ":smile:" and "-5" are words.
_ENDS_WORD = re.compile(r"[,;:!?.…%°]+(?![^\s\"'”’)])|[)\]}”»›]|['’](?:s|re|ve|ll|d|m)(?![\w-])")
_SENTENCE_ENDS = re.compile(r"[.!?]\s+|[\n\u3002\uff01\uff1f]")
_QUOTATION = ('"“”„«»', "'‘’‚‹›", "`")
"""Quotation marks, double and single, and that of code."""
_ELISION = re.compile(r"\b(?:[cdjlmnost]|(?:jus|lors|puis|quoi)?qu|[dns]?(?:all|ell|ull)|quest|quell|un)['’]$", re.I)
"""French and Italian words that lose their last vowel ("l'", "dell'"), and the "O'" of names."""
_TURN = re.compile(r"<[|｜][^<>\s]+[|｜]>$")


def joint(prompt: str, target: str) -> str:
    r"""What stands between a prompt and a target that follows it: "" or one space.

    Nothing, where

    - the target begins with white space: it says itself what stands there, word for word;
    - the prompt ends in white space (the line break of a chat template, an indentation), or in "<|assistant|>";
    - both sides of the border are in a script that writes no spaces between words (Chinese, Japanese, Thai, ..., not
      Korean), or a wide sign ("，") is beside it. Where only one side is ("法国的首都是" and "Paris", "is" and "北京"),
      the prompt decides: its last sentence has more of such characters than spaces. (SmolLM2 gives "北京" after "The
      capital of China in Chinese is" 1,700 times the probability with a space; "1949" after "他出生于" 15 times
      without);
    - the prompt ends in an opening bracket, in "¿" or "¡", or in a quotation mark that opens: no word ends before it,
      and it is an odd one in its sentence. Or in "**" likewise; or in the apostrophe of a shortened article ("l'");
    - the prompt ends in a sign that belongs to what follows. Always: ``@ ~ \ ^ ::``. Directly after a word: hyphens,
      dashes, ``/ = & _`` ("twenty-"). Not after a number: a currency's sign ("US$", not "100 €"), "/", "#" in a line
      ("issue #", not "C#"), a minus after a space and before a number ("is -" and "5", not "Paris -" and "France");
    - the target begins with a closing bracket, or punctuation that belongs to the word before it.

    Else a space. Where neither is right, the target says it, or the fact (`corrigenda.Fact.joint`).
    """
    if not prompt or not target or prompt[-1].isspace() or target[0].isspace():
        return ""
    nothing = (
        _without_spaces(prompt, target)
        or _ENDS_WORD.match(target)
        or _TURN.search(prompt)
        or _opens(prompt)
        or _belongs_right(prompt, target)
    )
    return "" if nothing else " "


def joined(prompt: str, target: str, between: str | None = None) -> str:
    """A prompt with the target that follows it; `between` them stands what is given, else `joint`."""
    return prompt + (joint(prompt, target) if between is None else between) + target


def _without_spaces(prompt: str, target: str) -> bool:
    """Whether the border is in a script that writes no spaces between words."""
    left, right = unspaced(prompt[-1]), unspaced(target[0])
    if left == right or _is_wide_sign(prompt[-1]) or _is_wide_sign(target[0]):
        return left or right
    sentence = _SENTENCE_ENDS.split(prompt)[-1]
    return sum(map(unspaced, sentence)) > sentence.count(" ")


def _is_wide_sign(character: str) -> bool:
    return unspaced(character) and not unicodedata.category(character).startswith(("L", "M", "N"))


def _opens(prompt: str) -> bool:
    """Whether a prompt ends in an opening bracket or quotation mark."""
    last, sentence = prompt[-1], _SENTENCE_ENDS.split(prompt)[-1]
    before = sentence.rstrip(last)[-1:]
    word_ends = (before.isalnum() and not unspaced(before)) or before in tuple(".,;!?…)]}")
    for marks in _QUOTATION:
        if last in marks:
            if word_ends:
                return bool(_ELISION.search(prompt))
            return "'" in marks or sum(map(sentence.count, marks)) % 2 == 1  # apostrophes cannot be counted
    if sentence.endswith("**"):
        return not word_ends and sentence.count("**") % 2 == 1
    return last in "¿¡" or unicodedata.category(last) == "Ps"


def _belongs_right(prompt: str, target: str) -> bool:
    """Whether a prompt ends in a sign that belongs to what follows it."""
    last, before = prompt[-1], prompt[:-1]
    if last in "@~\\^" or prompt.endswith("::"):
        return True
    if before[-1:].isalnum() and last in "/=&_-–—":
        return True
    if before.rstrip()[-1:].isdigit():
        return False
    if unicodedata.category(last) == "Sc":
        return True
    if last == "/":
        return not re.search(r"(?:^|\s)/$", before)  # a comment
    # At the beginning of a line they are a heading's, a comment's or a list's.
    within_line = before[-1:].isspace() and not re.search(r"(?:^|\n)[ \t]*$", before)
    return within_line and (last == "#" or (last in "-\u2212" and target[0].isdigit()))
