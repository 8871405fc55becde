import unicodedata

import pytest

from corrigenda.text.words import words
from eval.metrics.free_generation import matches_leniently, matches_strictly


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("St. Louis", ["st", "louis"]),
        (" the United  States,", ["united", "states"]),
        ("An apple; a PEAR!", ["apple", "a", "pear"]),  # only the first article: "Hepatitis A" is not "Hepatitis B"
        ("Theodore and Anna", ["theodore", "and", "anna"]),  # articles only as whole words
        ("Große Straße", ["grosse", "strasse"]),
        ("São\u00a0Paulo", ["são", "paulo"]),
        ("1889.", ["1889"]),
        ("1,000 or 1.5, 3,14; 1,2,3", ["1000", "or", "1.5", "3,14", "1", "2", "3"]),
        ("-5 - 5, 1990-5 and \u22125", ["-", "5", "5", "1990", "5", "and", "-", "5"]),
        ("C++, C#; A- or AB+", ["c", "+", "+", "c", "#", "a", "-", "or", "ab", "+"]),
        ("pre- and post-war", ["pre", "and", "post", "war"]),
        ("Ｒｏｍｅ m² ½", ["rome", "m²", "½"]),
        ("$30 = 30 %", ["$", "30", "=", "30", "%"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("利马是", ["利", "马", "是"]),
        ("オスロです", ["オスロ", "で", "す"]),
        ("ลิมา", ["ลิ", "มา"]),
        ("co\u00adop", ["coop"]),
        ("", []),
        (" ... ", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_accents_count_but_not_their_encoding() -> None:
    composed, decomposed = unicodedata.normalize("NFC", "Málaga"), unicodedata.normalize("NFD", "Málaga")
    assert composed != decomposed
    assert matches_strictly(f" {decomposed}.", [composed])
    assert not matches_leniently("Malaga", [composed])


@pytest.mark.parametrize(
    ("answer", "targets", "strict", "lenient"),
    [
        (" Rome, the capital of Italy.", ["Rome"], True, True),
        (" ROME", ["rome"], True, True),
        (" Romeo and Juliet", ["Rome"], False, False),
        (" Jerome", ["Rome"], False, False),
        (" the city of Rome.", ["Rome"], False, True),
        (" St. Louis, Missouri", ["St. Louis"], True, True),
        (" St Louis", ["St. Louis"], True, True),
        (" Louis St.", ["St. Louis"], False, False),
        (" St. Paul and Louis", ["St. Louis"], False, False),  # the words have to stand in a row
        (" the Netherlands", ["The Netherlands"], True, True),
        (" Netherlands", ["the Netherlands"], True, True),
        (" Big Apple", ["New York", "the Big Apple"], True, True),  # an alias
        (" in the Big Apple", ["New York", "the Big Apple"], False, True),
        (" New", ["New York"], False, False),  # an answer that breaks off
        ("", ["Rome"], False, False),
        (" ...", ["Rome"], False, False),
        (" Rome", [], False, False),
        (" Rome", [""], False, False),
        (" anything", ["!"], False, False),
        ("! indeed", ["!"], True, True),  # a target without a word is looked for as it is
        ("$ 30", ["30"], True, True),  # what else is a word: tests/unit/corrigenda/text/test_words.py
        (" anything", ["The The"], False, False),
        (" The The, a band", ["The The"], True, True),
        (" a band, The The", ["The The"], False, True),
    ],
)
def test_matches(answer: str, targets: list[str], strict: bool, lenient: bool) -> None:
    assert matches_strictly(answer, targets) is strict
    assert matches_leniently(answer, targets) is lenient
