import csv
from pathlib import Path

import pytest

from corrigenda import Fact
from corrigenda.data import read_facts
from corrigenda.errors import RecordError

KYOTO = Fact(
    subject="Kyoto",
    prompt="{} is a city in the country of",
    target_new="Brazil",
    target_true="Japan",
    id="7",
    paraphrases=("Kyoto lies in", "The land of Kyoto, a city, is"),
    neighbourhood=("Osaka is a city in the country of",),
)
OSLO = Fact(subject="Oslo", prompt='"{}" is in', target_new="Rome, Italy", id="8")
NAMES = ["id", "subject", "prompt", "target_new", "target_true", "paraphrases", "paraphrases", "neighbourhood"]
ROWS = [
    ["7", "Kyoto", KYOTO.prompt, "Brazil", "Japan", *KYOTO.paraphrases, *KYOTO.neighbourhood],
    ["8", "Oslo", OSLO.prompt, "Rome, Italy", "", "", "", ""],
]


def write(path: Path, rows: list[list[str]], **options: str) -> Path:
    """A table as Python's own writer makes it."""
    with path.open("w", encoding=options.pop("encoding", "utf-8"), newline="") as file:
        csv.writer(file, **options).writerows(rows)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("facts.csv", {}),
        ("facts.csv", {"delimiter": ";"}),
        ("facts.csv", {"delimiter": "\t"}),
        ("facts.tsv", {"delimiter": "\t"}),
        ("facts.csv", {"encoding": "utf-8-sig", "lineterminator": "\n"}),
    ],
)
def test_a_table_of_facts(name: str, options: dict[str, str], tmp_path: Path) -> None:
    found = read_facts(write(tmp_path / name, [NAMES, *ROWS, ["", " "]], **options))
    assert list(found) == [KYOTO, OSLO]
    assert found.name == "facts"


def test_blank_lines_above_the_names_of_the_columns(tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_text("\n;;\nsubject;prompt;target_new\nOslo;{} is in;Rome\n", encoding="utf-8")
    assert [fact.claim for fact in read_facts(tmp_path / "facts.csv")] == ["Oslo is in Rome"]


def test_columns_with_numbers(tmp_path: Path) -> None:
    names = [*NAMES[:5], "paraphrases", "paraphrases.1", "neighbourhood"]
    assert next(iter(read_facts(write(tmp_path / "facts.csv", [names, *ROWS])))) == KYOTO


def test_probes(tmp_path: Path) -> None:
    names = ["subject", "prompt", "target_new"]
    names += ["portability.prompt", "portability.answer", "portability.prompt", "portability.answer", "locality.prompt"]
    names += ["locality.answer", "portability.group"]
    row = ["Oslo", "{} is in", "Rome", "a", "b", "c", "d", "e", "f", "multi_hop"]
    [fact] = read_facts(write(tmp_path / "facts.csv", [names, row]))
    assert [(probe.prompt, probe.answer, probe.group) for probe in fact.portability] == [
        ("a", "b", "multi_hop"),
        ("c", "d", ""),
    ]
    assert [(probe.prompt, probe.answer) for probe in fact.locality] == [("e", "f")]
    with pytest.raises(RecordError, match=r"facts\.csv, line 2, field 'portability\[1\]'.*has no answer"):
        read_facts(write(tmp_path / "facts.csv", [names, [*row[:6], "", *row[7:]]]))


def test_the_parts_of_a_probe_belong_together_by_their_number(tmp_path: Path) -> None:
    names = ["subject", "prompt", "target_new", "locality.prompt.2", "locality.prompt.1", "locality.answer.1"]
    row = ["Oslo", "{} is in", "Rome", "c", "a", "b", "d", "hard"]
    [fact] = read_facts(write(tmp_path / "facts.csv", [[*names, "locality.answer.2", "locality.group.2"], row]))
    assert [(probe.prompt, probe.answer, probe.group) for probe in fact.locality] == [
        ("a", "b", ""),
        ("c", "d", "hard"),
    ]


def test_a_space_after_the_separator_is_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_text('subject, prompt, target_new\nOslo, "{} is in", Rome\n', encoding="utf-8")
    [fact] = read_facts(tmp_path / "facts.csv")
    assert (fact.statement, fact.target_new) == ("Oslo is in", "Rome")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty; its first line must name the columns"),
        ("subject,prompt,target_new\n", "has no records"),
        ("subject,,target_new\nx,y,z\n", "column 2 has no name"),
        ("subject,prompt,prompt\nx,y,z\n", "two columns are called 'prompt'"),
        ("subject,prompt,target_new,paraphrases\nx,{} y,z,['a']\n", "line 2.*'paraphrases'.*is a list in one cell"),
        ("subject,locality.prompt.1,locality.prompt\nx,y,z\n", r"two columns are locality\.prompt of the probe 1"),
        ("subject,prompt,locality\nx,y,z\n", r"name locality\.prompt and locality\.answer"),
        ("subject,prompt,target_new\nOslo,{} is in,Rome, Italy\n", "line 2.*has 4 cells.*names 3 columns.*quotation"),
        ('subject,prompt,target_new\n"Oslo\nx",{} is in,Rome\nOslo,{} is in,\n', "line 4.*target_new"),
        ('subject,prompt,target_new\nOslo,"{} is in,Rome\n', "line 2.*quotation mark missing"),
        ("subject,prompt,target_nwe\nOslo,{} is in,Rome\n", "line 2.*target_nwe.*is not a field"),
    ],
)
def test_what_cannot_be(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_facts(tmp_path / "facts.csv")


def test_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "facts.csv").write_bytes("subject,prompt\nZürich,x\n".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8 text at byte 16"):
        read_facts(tmp_path / "facts.csv")


def test_bad_rows_can_be_skipped(tmp_path: Path) -> None:
    found = read_facts(write(tmp_path / "facts.csv", [NAMES, ["x"], *ROWS]), on_error="skip")
    assert (len(found), [error.number for error in found.skipped]) == (2, [2])
    path = write(tmp_path / "quotes.csv", [NAMES, ["9", "@", OSLO.prompt, "Rome", *[""] * 4], *ROWS])
    path.write_text(path.read_text().replace("@", '"Bergen" in the west'))
    found = read_facts(path, on_error="skip")
    assert (len(found), [error.number for error in found.skipped]) == (2, [2])
