"""Normalisation of free answers, and what counts as giving a target; all expectations are written by hand."""

from __future__ import annotations

import unicodedata

import pytest

from eval.metrics.free_generation import matches_leniently, matches_strictly, normalise


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("St. Louis", ["st", "louis"]),
        (" the United  States,", ["united", "states"]),
        ("An apple; a PEAR!", ["apple", "a", "pear"]),  # only the first article: "Hepatitis A" is not "Hepatitis B"
        ("Theodore and Anna", ["theodore", "and", "anna"]),  # articles only as whole words
        ("Große Straße", ["grosse", "strasse"]),
        ("São\u00a0Paulo", ["são", "paulo"]),
        ("1889.", ["1889"]),
        ("", []),
        (" ... ", []),
    ],
)
def test_normalise(text: str, words: list[str]) -> None:
    assert normalise(text) == words


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
        (" anything", ["!"], False, False),  # a target without a word matches nothing
        (" anything", ["The The"], False, False),
        (" The The, a band", ["The The"], True, True),
        (" a band, The The", ["The The"], False, True),
    ],
)
def test_matches(answer: str, targets: list[str], strict: bool, lenient: bool) -> None:
    assert matches_strictly(answer, targets) is strict
    assert matches_leniently(answer, targets) is lenient
