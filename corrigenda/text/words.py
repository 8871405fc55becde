"""Whole words of texts in any script, and whether one text begins with another, or contains it, as whole words.

What a word is: a run of letters, marks and digits. In scripts that write no spaces (Han, hiragana, Thai, Lao, Khmer,
Myanmar and their like) there is a border between any two characters with their marks; a run of katakana is one word. A
Korean word may be followed by particles ("오슬로입니다" begins with "오슬로", "프랑스어" does not begin with "프랑스").

Punctuation separates words and is left out, so that "Rome.", "**Rome**", "Rome's" and "Rome-based" begin with "Rome".
Signs count, and belong to the word that they touch: "C++" and "C#" do not begin with "C", nor "A-" and "A+" with "A",
nor "-5" with "5". Numbers are whole: "1.5", "1,000" and "3万" do not begin with "1" or "3". Symbols (emoji, "$", "%",
"=") count where the text that is looked for has them: "$ 30" begins with "30", and not with "30 %".
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from corrigenda.text.display import unspaced
from corrigenda.text.question import question

_ARTICLES = frozenset({"a", "an", "the"})


def normal_form(text: str) -> str:
    """A text as texts are compared: Unicode NFKC without case, but "½", "①" and "²" stay what they are.

    As plain digits they would be other numbers: "1½" is not 11/2, nor "10²" 102.
    """
    if text.isascii():
        return text.lower()
    plain = "".join(char if _keeps_form(char) else unicodedata.normalize("NFKC", char) for char in text)
    # Capital letters are decomposed by the removal of case.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", plain).casefold())


@cache
def _keeps_form(char: str) -> bool:
    return unicodedata.category(char) == "No" or unicodedata.decomposition(char).startswith(
        ("<super>", "<sub>", "<circle>")
    )


@dataclass(frozen=True)
class Word:
    """A word, or a sign or symbol that stands for itself, in normal form.

    `bound` says whether it belongs together with the one before it, as "+" after "C", or "5" after "-".
    """

    text: str
    bound: bool = False


def words(text: str) -> list[str]:
    """The words of a text and its signs, in normal form, without the article that it begins with.

    Only that article: "Hepatitis A" is not "Hepatitis B", nor "Xi'an" Xi Jinping.
    """
    return [word.text for word in _without_article(_split(text))]


def places(text: str, wanted: str) -> list[int]:
    """At which of a text's words another text stands in it, as whole words in a row; 0: the text begins with it.

    An article at the beginning of either does not count.
    """
    target = _split(wanted)
    spelt = any(char.isalnum() for word in target for char in word.text)
    found = _split(text, frozenset(word.text for word in target) if spelt else None)
    if not target:  # nothing but punctuation, which then stands for itself
        place = normal_form(text).strip().find(normal_form(wanted).strip()) if wanted.strip() else -1
        return [place] if place >= 0 else []
    # A target that is an article ("A", "The The") would come to nothing and match everything.
    if shorter := _without_article(target):
        target, found = shorter, _without_article(found)
    return [place for place in range(len(found) - len(target) + 1) if _matches_at(found, place, target)]


class Phrases:
    """Many texts that are looked for at once, as `places` looks for one; by their first words.

    One that is nothing but punctuation stands in no text.
    """

    def __init__(self, wanted: Sequence[str]) -> None:
        self._by_first: dict[str, list[tuple[int, list[Word]]]] = {}
        for number, text in enumerate(wanted):
            target = _split(text)
            target = _without_article(target) or target
            if target:
                self._by_first.setdefault(target[0].text, []).append((number, target))
        self._symbols = frozenset(word.text for some in self._by_first.values() for _, one in some for word in one)

    def within(self, text: str) -> list[int]:
        """The numbers of those that stand in a text, ascending."""
        return sorted({number for number, _ in self.found(text)})

    def length(self, text: str) -> int:
        """How many words a text has, as `found` counts them."""
        return len(_split(text, self._symbols))

    def found(self, text: str) -> list[tuple[int, range]]:
        """Wherever one of them stands in a text: its number, and at which of the text's words."""
        found = _split(text, self._symbols)
        return [
            (number, range(place, place + len(target)))
            for place, word in enumerate(found)
            for first in _nouns(word.text) & self._by_first.keys()
            for number, target in self._by_first[first]
            if place + len(target) <= len(found) and _matches_at(found, place, target)
        ]


class Names:
    """Finds by its names which of several things a text names.

    A name inside a longer one counts there for nothing: "Paris Hilton" names no city, where both are known.
    """

    def __init__(self, names: Sequence[Sequence[str]]) -> None:
        owned = [(name, number) for number, own in enumerate(names) for name in own]
        self._phrases, self._owners = Phrases([name for name, _ in owned]), [number for _, number in owned]

    def within(self, text: str) -> list[int]:
        """The numbers of those that a text names, ascending."""
        return self._from(text, 0)

    def asked(self, text: str) -> list[int]:
        """Of those the ones that its end asks about: by a name that reaches into `question(text)`."""
        return self._from(text, self._phrases.length(text) - self._phrases.length(question(text)))

    def _from(self, text: str, begin: int) -> list[int]:
        found = self._phrases.found(text)
        spans = {at for _, at in found}
        inside = {a for a in spans for b in spans if a != b and b.start <= a.start and a.stop <= b.stop}
        return sorted({self._owners[number] for number, at in found if at not in inside and at.stop > begin})


def _nouns(word: str) -> set[str]:
    """The word, and in Korean what it may be with particles."""
    return {word[:end] for end in range(1, len(word) + 1)} if _kind(word[-1]) == "h" else {word}


def _matches_at(found: Sequence[Word], begin: int, target: Sequence[Word]) -> bool:
    end = begin + len(target)
    if found[begin].bound or (end < len(found) and found[end].bound):
        return False
    pairs = list(zip(found[begin:end], target, strict=True))
    return all(word.text == one.text for word, one in pairs[:-1]) and _same_noun(pairs[-1][0].text, pairs[-1][1].text)


def _same_noun(word: str, noun: str) -> bool:
    """Whether a word is another, or in Korean the other with particles."""
    if word == noun:
        return True
    return _kind(noun[-1]) == "h" and word.startswith(noun) and _PARTICLES.fullmatch(word[len(noun) :]) is not None


def _without_article(found: list[Word]) -> list[Word]:
    """Without the article that it begins with, unless that is no word of its own ("A+")."""
    begins = bool(found) and found[0].text in _ARTICLES and not (len(found) > 1 and found[1].bound)
    return found[1:] if begins else found


# What Korean puts behind a noun: plural and honorific, particles in any order, the copula in any form. "인" is not
# among them: "로마인" is a Roman.
_PARTICLES = re.compile(
    "(?:들|님)?"
    "(?:은|는|이|가|을|를|의|에|에서|에게|에게서|께|께서|한테|한테서|으?로|으?로서|으?로써|으?로부터|와|과|이?랑|하고|도|만|뿐|"
    "까지|부터|마저|조차|밖에|보다|처럼|같이|마다|대로|만큼|이?나|이?든지|이?라도|야|아|여|이여|이?요|이?란|이?라는|이?라고|이?며|이?고)*"
    "(?:(?:입니|이었|였|이에요|예요|이지|지만|이[다자라니네죠면야던셨십므]|인데|인지|인가|일까|일지|니까|다|답니|이?랍니|라서|죠|네요)"
    "[가-힣]*)?"
)


@cache
def _kind(char: str) -> str:
    """What a character is to a word: a letter that stands for its kind, or the character itself.

    "9" a digit, "a" a letter with spaces between words, "c" one of a script without, "k" katakana, "h" Hangul, "m" a
    mark on the character before, "j" one that joins two characters to one, "r" half of a flag, "s" a symbol, "+" a
    sign, "-" a dash that may be a minus, " " a space, "!" other punctuation.
    """
    code, category = ord(char), unicodedata.category(char)
    if char in " .,:/_*#)":
        return char
    if category == "Nd":
        return "9"
    if char in "\u200d\u1039\u17d2":  # the joiner of emoji; what stacks consonants in Myanmar and Khmer
        return "j"
    # A vowel that Thai and Lao write behind its consonant as a letter; a colour of skin; a region of a flag.
    if category[0] == "M" or char in "ะาๅະາ" or 0x1F3FB <= code <= 0x1F3FF or 0xE0020 <= code <= 0xE007F:
        return "m"
    if char.isalnum():
        if 0x30A1 <= code <= 0x30FF or 0x31F0 <= code <= 0x31FF:
            return "k"
        if unspaced(char):
            return "c"
        return "h" if 0x1100 <= code <= 0x11FF or 0xAC00 <= code <= 0xD7FF else "a"
    if char in "-‐‑–−":
        return "-"
    if char in "+±≤≥≈√♯♭♮":
        return "+"
    if 0x1F1E6 <= code <= 0x1F1FF:
        return "r"
    if char in "™®©℠`~":
        return "!"
    if category in ("Sc", "Sm", "So", "Sk") or char in "%‰&@":
        return "s"
    return " " if char.isspace() else "!"


# Over the kinds of a text's characters.
_SHORT = "(?:(?<=(?<![9amckhj*])[9a])|(?<=(?<![9amckhj*])[9a][9a]))"  # after a word of one or two characters
_WORDS = re.compile(
    rf"""
    (?P<word>
      (?:(?<![9amckh.])\.(?=9))?  [9a] (?: [9amj] | (?<=9)[.,:/](?=9) | _+(?=[9a]) )*
      | k[km]* | h[hm]* | c(?:m|jc?)*
    )
    | (?P<sign>
      \+
      | (?<=[9amckh])\#
      | (?<![9amckh)-]) - (?=s?\.?9)
      | {_SHORT} [-*] (?![9amckh*-])
    )
    | (?P<symbol> rr | [sr](?:m|j[sr])* )
    """,
    re.VERBOSE,
)
_LIST = re.compile(r"\d+(?:,\d+){2,}")
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:[,，'’\u00a0\u2009\u202f]\d{3})+)(?!,?\d)")
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]"
)


def seen(text: str) -> str:
    """A text without soft hyphens, directions and variants of one character's picture; a border not seen is a space."""
    return _UNSEEN.sub("", text).replace("\u200b", " ")


def _split(text: str, symbols: frozenset[str] | None = None) -> list[Word]:
    """A text's words, signs and symbols in order; of the symbols only those named, where some are."""
    text = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), seen(text))
    text = _LIST.sub(lambda match: match[0].replace(",", " "), text)
    text = normal_form(text).replace("i\u0307", "i").replace("ı", "i")  # Turkish has two letters i; which is not known
    text = "".join(str(unicodedata.decimal(char)) if _kind(char) == "9" else char for char in text)
    kinds = "".join(map(_kind, text))
    found: list[Word] = []
    end, before = 0, ""  # of the one before: where it ends, and what it is
    for match in _WORDS.finditer(kinds):
        begin, what = match.start(), match.lastgroup or ""
        if what == "symbol" and symbols is not None and text[begin : match.end()] not in symbols:
            continue
        if not found and what == "sign" and kinds[begin : begin + 2] == "+ ":
            continue  # the mark of a list
        word = re.sub("[‐‑–−]", "-", text[begin : match.end()])
        between = kinds[end:begin]
        touches = not between and "sign" in (what, before)
        numbers = not between and found and found[-1].text[-1].isnumeric() and word[0].isnumeric()
        found.append(Word(word, bool(found) and bool(touches or numbers)))
        end, before = match.end(), what
    return found
