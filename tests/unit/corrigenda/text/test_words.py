import unicodedata

import pytest

from corrigenda.text.words import Names, Phrases, normal_form, places

BEGINS, CONTAINS, NEITHER = (True, True), (False, True), (False, False)


def found(text: str, wanted: str) -> tuple[bool, bool]:
    return 0 in places(text, wanted), bool(places(text, wanted))


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("利马市是秘鲁的首都。", "利马", BEGINS),
        ("它是利马", "利马", CONTAINS),
        ("王 小明", "王·小明", BEGINS),
        ("三月", "三", BEGINS),
        ("三十", "三", NEITHER),
        ("3万", "3", NEITHER),
        ("オスロです。", "オスロ", BEGINS),
        ("ﾛｰﾏです", "ローマ", BEGINS),
        ("首都は東京です", "東京", CONTAINS),
        ("リマソール", "リマ", NEITHER),  # a run of katakana is one word: Limassol is not Lima
        ("インド", "イン", NEITHER),
        ("トム・クルーズ", "トム", BEGINS),
        ("ลิมาเป็นเมืองหลวง", "ลิมา", BEGINS),
        ("กาแฟ", "กา", BEGINS),
        ("กาแฟ", "ก", NEITHER),  # a character goes with its vowel
        ("กี", "ก", NEITHER),
        ("ວຽງຈັນເປັນ", "ວຽງຈັນ", BEGINS),
        ("ភ្នំពេញជា", "ភ្នំពេញ", BEGINS),
        ("ភ្នំពេញ", "ភ", NEITHER),
        ("ရန်ကုန်မြို့", "ရန်ကုန်", BEGINS),
        ("오슬로입니다", "오슬로", BEGINS),
        ("서울에서 왔다", "서울", BEGINS),
        ("서울이에요", "서울", BEGINS),
        ("로마였습니다", "로마", BEGINS),
        ("iPhone입니다", "iPhone", BEGINS),
        ("수도는 서울입니다.", "서울", CONTAINS),
        ("프랑스어", "프랑스", NEITHER),  # French is not France
        ("한국어입니다", "한국", NEITHER),
        ("दिल्ली है", "दिल्ली", BEGINS),
        ("दिल्ली", "दिल", NEITHER),  # marks are parts of a word
        ("की", "का", NEITHER),
    ],
)
def test_scripts(text: str, wanted: str, expected: tuple[bool, bool]) -> None:
    assert found(text, wanted) == expected


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("C++ and Python.", "C++", BEGINS),
        ("C++ and Python.", "C#", NEITHER),
        ("C++", "C", NEITHER),
        ("C#", "C", NEITHER),
        ("C, of course", "C++", NEITHER),
        ("C++11", "C++", NEITHER),
        ("Disney+", "Disney", NEITHER),
        ("B♭", "B", NEITHER),
        ("A- at best", "A-", BEGINS),
        ("A− at best", "A-", BEGINS),
        ("A- at best", "A+", NEITHER),
        ("A- at best", "A", NEITHER),
        ("A", "A+", NEITHER),
        ("A+ grade", "A+", BEGINS),  # the article is a word of its own
        ("A* search", "A", NEITHER),
        ("A-list", "A", BEGINS),
        ("**A**", "A", BEGINS),
        ("-5 degrees", "5", NEITHER),
        ("5", "-5", NEITHER),
        ("−5", "-5", BEGINS),
        ("(-5)", "-5", BEGINS),
        ("$-5", "5", NEITHER),
        ("- 5", "5", BEGINS),  # the mark of a list
        ("+ Rome", "Rome", BEGINS),
        ("1990–1995", "1990", BEGINS),
        ("1990–1995", "1995", CONTAINS),
        ("COVID-19", "19", CONTAINS),
        ("1.5", "1.5", BEGINS),
        ("1.5.", "1.5", BEGINS),
        ("1.5", "1", NEITHER),
        ("1.5", "15", NEITHER),
        ("1.5", "5", NEITHER),
        (".5", "5", NEITHER),
        ("...5", "5", BEGINS),
        ("1,000, of course", "1000", BEGINS),
        ("1\u202f000", "1,000", BEGINS),
        ("1,000", "1", NEITHER),
        ("1/2", "1", NEITHER),
        ("5:30", "5", NEITHER),
        ("$ 30", "$30", BEGINS),
        ("$ 30", "30 %", NEITHER),
        ("$30", "30", BEGINS),  # of symbols those count that are looked for
        ("30 %", "30%", BEGINS),
        ("30 %", "30", BEGINS),
        ("30 km", "30", BEGINS),
        ("20℃", "20 °C", BEGINS),
        ("20°C", "20", BEGINS),
        ("30 €", "$ 30", NEITHER),
        ("½ cup", "½", BEGINS),
        ("½", "1", NEITHER),
        ("1½", "1", NEITHER),
        ("①", "1", NEITHER),
        ("m²", "m2", NEITHER),
        ("５", "5", BEGINS),
        ("٥", "5", BEGINS),
        ("AT&T Inc", "AT&T", BEGINS),
        ("x == 42", "x == 42", BEGINS),
        ("x != 42", "x == 42", NEITHER),
        ("    return 42\n", "\n    return 42", BEGINS),
        ("return -42", "return 42", NEITHER),
        ("🙂 always", "🙂", BEGINS),
        ("❤\ufe0f love", "❤", BEGINS),
        ("🙃🙂", "🙂", CONTAINS),
        ("🇫🇷 flag", "🇫🇷", BEGINS),
        ("🇫🇷🇮🇹", "🇷🇮", NEITHER),
        ("👍🏽", "👍", NEITHER),
        ("👨\u200d👩\u200d👧", "👨", NEITHER),
        ("🙂 Rome", "Rome", BEGINS),
        ("Rome™", "Rome", BEGINS),
    ],
)
def test_signs_and_symbols(text: str, wanted: str, expected: tuple[bool, bool]) -> None:
    assert found(text, wanted) == expected


@pytest.mark.parametrize(
    "text", ["Rome.", '"Rome"', "“Rome”,", "*Rome*", "**Rome**", "__Rome__", "`Rome`", "Rome's", "Rome-based", "# Rome"]
)
def test_punctuation_separates_words_and_is_left_out(text: str) -> None:
    assert found(text, "Rome") == BEGINS


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ISTANBUL", "İstanbul"),
        ("İSTANBUL", "istanbul"),
        ("IĞDIR", "Iğdır"),
        ("GROẞE STRASSE", "große Straße"),
        ("Ｒｏｍｅ", "Rome"),
        ("ΟΔΟΣ", "οδός".replace("ό", "ο")),
    ],
)
def test_case_and_width_do_not_count(text: str, wanted: str) -> None:
    assert found(text, wanted) == BEGINS


def test_the_encoding_of_letters_does_not_count_in_any_case() -> None:
    for name in ("Zoé Brême", "ǰ", "ΐ", "가나다", "Ấp"):
        composed, decomposed = unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)
        assert normal_form(composed) == normal_form(decomposed) == normal_form(decomposed.upper())


def test_ascii_takes_the_short_way_to_the_same_form() -> None:
    text = "".join(map(chr, range(128)))
    assert normal_form(text) == normal_form(text + "é")[:-1]


@pytest.mark.parametrize(
    "text", ["the Eiffel tower, they say", "Paris Hilton was born in", "파리는 어디", "C++ is a", "a river"]
)
def test_many_texts_at_once_are_found_as_each_by_itself(text: str) -> None:
    wanted = [
        "The Eiffel Tower",
        "eiffel",
        "tower",
        "tower they",
        "Paris",
        "Paris Hilton",
        "파리",
        "C",
        "C++",
        "a",
        "!",
        "x",
    ]
    assert Phrases(wanted).within(text) == [n for n, one in enumerate(wanted) if one != "!" and places(text, one)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("The mother tongue of Paris Hilton is", [1]),
        ("Paris is the capital of", [0]),
        ("Paris Hilton was born in Paris, in", [0, 1]),
        ("BBC Radio 4's owner is", [3]),
        ("東京タワー is in", [5]),
        ("東京 is in", [4]),
        ("the Old Tower of London Bridge", [6]),  # two that overlap, of one thing; London lies within both
    ],
)
def test_a_name_inside_a_longer_one_names_nothing(text: str, named: list[int]) -> None:
    alone = ("Paris", "Paris Hilton", "BBC Radio", "BBC Radio 4", "東京", "東京タワー")
    names = [*((name,) for name in alone), ("Tower of London", "London Bridge"), ("London",)]
    assert Names(names).within(text) == named
