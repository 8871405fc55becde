import csv
import io
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from corrigenda.text.display import in_spreadsheet, on_one_line, printable, quoted, shortened


def test_long_texts_are_cut() -> None:
    assert shortened("a" * 100) == "a" * 100
    assert shortened("a" * 101) == "a" * 97 + "..."
    assert on_one_line("a\nb") == "a b"
    assert on_one_line("word " * 100) == "word " * 11 + "wo..."
    assert quoted("a\nb") == r"'a\nb'"
    assert quoted("abc", most=2) == "'ab'..."


def test_what_acts_on_a_terminal_is_shown_as_an_escape() -> None:
    assert printable("\x1b[31mred\x1b[0m") == r"\x1b[31mred\x1b[0m"
    assert printable("a\rb\x08\x7f\x00") == r"a\rb\x08\x7f\x00"
    assert printable("\x9b2J \x9d0;title\x9c") == r"\x9b2J \x9d0;title\x9c"  # C1: CSI and OSC in one character
    assert printable("user\u202etxt.exe \u2066x\u2069") == r"user\u202etxt.exe \u2066x\u2069"
    assert printable("a\u2028b\nc") == r"a\u2028b\nc"
    assert printable("a\nb\tc", lines=True) == "a\nb\tc"
    assert printable("a\udc80") == r"a\udc80"  # as a name of a file may be that is no UTF-8


def test_texts_of_all_scripts_are_left_as_they_are() -> None:
    for text in ("東京 is in 日本", "कीव में", "שלום", "می‌خواهم", "👩‍👩‍👧 🏴", "C:\\n", "[red]x[/]", "$x_1$"):
        assert printable(text) == text


@given(st.text())
def test_nothing_that_is_printable_can_be_written_otherwise(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown
    assert not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in shown.replace("\t", ""))


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp", "Cf"])) | st.integers(), min_size=1))
def test_cells_are_no_formulas_and_what_was_written_is_read_back(cells: list[str | int]) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerow(map(in_spreadsheet, cells))
    [read] = csv.reader(io.StringIO(file.getvalue(), newline=""))
    for cell, found in zip(cells, read, strict=True):
        assert found.removeprefix("'") == str(cell)
        assert not found.startswith(("=", "+", "-", "@", "\t", "\r")) or float(found) is not None


def test_what_a_spreadsheet_would_compute_is_marked() -> None:
    assert in_spreadsheet("=HYPERLINK(A1)") == "'=HYPERLINK(A1)"
    assert in_spreadsheet("\t=1") == "'\t=1"
    assert [in_spreadsheet(text) for text in ("@SUM(1)", "+1+1", "-a", "'x")] == ["'@SUM(1)", "'+1+1", "'-a", "''x"]
    assert [in_spreadsheet(number) for number in (-5, -0.5, None, "-5", "a=1")] == [-5, -0.5, None, "-5", "a=1"]
