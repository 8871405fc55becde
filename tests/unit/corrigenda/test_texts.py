from corrigenda.texts import on_one_line, quoted, shortened


def test_long_texts_are_cut() -> None:
    assert shortened("a" * 100) == "a" * 100
    assert shortened("a" * 101) == "a" * 97 + "..."
    assert on_one_line("a\nb") == "a b"
    assert on_one_line("word " * 100) == "word " * 11 + "wo..."
    assert quoted("a\nb") == r"'a\nb'"
    assert quoted("abc", most=2) == "'ab'..."
