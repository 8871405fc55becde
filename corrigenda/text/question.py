"""Which part of a text says whom its end asks about, and which asks nothing.

A text goes on about whom it named last: in "The tower is in Paris. The Louvre is in" the end asks about the Louvre, in
"I like the tower. It is in" about the tower. Who is meant takes a model to say; this goes by capital letters alone.
"""

import re

_DOTS = "[\\s\"'`*_.:：…\\-–—)\\]”’»]*"
_FILLER = re.compile(rf"{_DOTS}(?:(?:\n|(?<=[.?!？！。\"'”’)])[ \t])[\s#*>]*\w+[ \t*]*[:：]{_DOTS})?\Z")
_ENDS = re.compile(r"[.!?…][\"')\]”’»]*\s+|[。！？]\s*|\n+|;\s+|,\s+(?=(?:and|but|while|whereas)\s)")
"""Of sentences, and of clauses that may have a subject of their own."""
_WORDS = re.compile(r"[^\W\d_]+")
_TAGS = re.compile(r"<[^<>]*>|\[/?[A-Z_]+\]")  # of a conversation's template
_ABBREVIATED = frozenset(
    "capt co col corp dr ft gen gov hon inc jr lt ltd mr mrs ms mt no prof rev sen sgt sr st vs".split()
)
_ASKS = frozenset(
    "answer brief briefly concise explain explanation please reply respond short thank thanks word words".split()
)
_MANNER = _ASKS | frozenset(
    """a advance and as be concisely do don exactly few final for give in is it just keep me name no not nothing of one
    only or possible response say sentence simple simply single t the to use very with without write you your""".split()
)
"""Words of sentences that say how to answer ("Answer in one word."): all are of these, one is of `_ASKS`."""
_PLAIN = _MANNER | frozenset(
    """about after all also although an any are at because before between both but by can complete could did does
    during each every fill finish from had has have he her here his how however i if into its let like my near on
    once our provide q question she since so some such tell that their then there these they think this those
    through today under until was we were what when where whether which while who whom whose why will would
    yes""".split()
)
"""Words that name nobody, though a sentence begins with them and so with a capital."""


def question(text: str) -> str:
    """The end of a text from its last sentence or clause on that names anybody or anything; all where none does.

    A name is a word with a capital that is not in `_PLAIN`. In scripts without capitals any sentence may have one. A
    line that ends in a colon ("Place of birth:") may begin with any word.
    """
    ends = [match.end() for match in _ENDS.finditer(text) if _ends_there(text, match)]
    pieces = [(begin, text[begin:end]) for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    return text[next((begin for begin, piece in reversed(pieces) if _names(piece)), 0) :]


def asking(text: str) -> str:
    """A text without what may stand behind its question's last word and asks nothing.

    That is dots, quotation marks and the like ('Complete this: "The tower is in the ..."'), a line or a sentence of one
    word and a colon ("Answer:", "### Response:"), and sentences that only say how to answer ("Answer in one word.").
    """
    while True:
        text = _FILLER.sub("", text)
        last = max((match.end() for match in _ENDS.finditer(text)), default=0)
        words = {word.lower() for word in _WORDS.findall(text[last:])}
        if not (last and words <= _MANNER and words & _ASKS):
            return text
        text = text[:last]


def _ends_there(text: str, match: re.Match[str]) -> bool:
    """Whether a sentence ends, and not an abbreviation: "St. Louis", "J. K. Rowling", "e.g. Rome"."""
    if match[0][0] != "." or "\n" in match[0]:
        return True
    before = re.split(r"[\W_]", text[: match.start()])[-1]
    initial = len(before) == 1 and before.isalpha()
    return not (initial or before.lower() in _ABBREVIATED or text[match.end() : match.end() + 1].islower())


def _names(piece: str) -> bool:
    words = _WORDS.findall(_TAGS.sub(" ", piece))
    if piece.rstrip().endswith((":", "：")):
        words = words[1:]
    return any(not word[0].islower() and word.lower() not in _PLAIN for word in words)
