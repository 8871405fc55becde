"""Whom a text's end asks about: the part of the text in which that is said, by hand."""

import pytest

from corrigenda.text.question import asking, question
from corrigenda.text.words import Names


@pytest.mark.parametrize(
    ("before", "asked"),
    [
        ("", ""),
        ("", "Where is the tower"),
        ("The Tower is in Paris. ", "The Louvre is in"),
        ("The Tower is in Paris. ", "Louvre, in"),
        ("The Tower is in Paris! (At last!) ", "Where is Oslo?"),
        ("Q: Where is Rome?\nA: Italy\n", "Q: Where is Oslo?\nA:"),
        ("", "Name: Big Ben\nPlace of birth:"),
        ("", "I like the Tower. It is in"),
        ("The Louvre is old. ", "I like the Tower. I wonder, where is it? Please answer"),
        ("", "Where is Oslo? Answer in one word."),
        ("Rome is old. ", "Where is Oslo? Be concise. Thanks in advance!"),
        ("He is aged 30. ", "Rigi is in"),
        ("", "Dr. Smith, whom J. K. Rowling met in St. Louis, is"),
        ("", "Washington D.C. is in"),
        ("", "The Tower is near one, e.g. Oslo, and in"),
        ("", "all is lower. it is"),
        ("我在读关于巴黎的书。", "伦敦位于"),
        ("The Tower is in Paris, ", "and the Louvre is in"),
        ("The Tower is in Paris; ", "the Louvre, its neighbour, is in"),
        ("", "The Tower and the Louvre, unlike Big Ben, are in"),
        ("", "The Tower is old, and its city is"),
        ("Москва стара. ", "Тула стоит"),
    ],
)
def test_the_part_of_a_text_that_says_it(before: str, asked: str) -> None:
    assert question(before + asked) == asked


def test_a_name_counts_that_reaches_into_the_end() -> None:
    names = Names([["Yahoo! Tech"], ["Google"], ["the Tech"], ["Earth, Wind, and Fire"]])
    text = "Google is big. Yahoo! Tech is owned by"
    assert (names.within(text), names.asked(text)) == ([0, 1], [0])
    text = "Earth, Wind, and Fire plays"
    assert names.asked(text) == [3]


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ('The tower is in the ..."', ' ..."'),
        ("The tower is in\nAnswer:", "\nAnswer:"),
        ('"The tower is in ..."\n A:\n', ' ..."\n A:\n'),
        ("塔在\n回答：", "\n回答："),
        ("Where is it?\nAnswer: ", "\nAnswer: "),
        ("The tower\nPlace of birth:", ":"),
        ("The tower is in\nPlace", ""),
        ("The tower is in an answer:", ":"),
        ("Where is it? A:", " A:"),
        ("The tower is in\n\n### Response:\n", "\n\n### Response:\n"),
        ("Where is it?\n\n**Answer:** ", "\n\n**Answer:** "),
        ("Where is it?\nYour answer:", "\nYour answer:"),
        ('"The tower is in ..." A:', ' ..." A:'),
        ("The tower, built in A:", ":"),
        ("Where is it? Answer in one word.", " Answer in one word."),
        ('"The tower is in ..." Please answer briefly.\nAnswer:', ' ..." Please answer briefly.\nAnswer:'),
        ("Where is it? Don't explain. Thank you!", " Don't explain. Thank you!"),
        ("Where is it\n(in 3 words, please)", "\n(in 3 words, please)"),
        ("Where is it?\nThe answer is", "\nThe answer is"),
        ("I like it. It is in", ""),
        ("I like it. Please say who made it", ""),
        ("Answer in one word.", "."),
        ("Where is it?" + " Please." * 1100, " Please." * 1100),
    ],
)
def test_the_end_that_asks_nothing(text: str, end: str) -> None:
    assert text[len(asking(text)) :] == end
