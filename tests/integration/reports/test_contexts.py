import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tiny
from run_parts import record, write
from scripts import script

from corrigenda import LanguageModel
from corrigenda.moments.text import Text
from editing import Rome, ValueSettings

SUBJECTS = ["Thomas", "Danielle", "Ben", "the river", "the tower"]
LOADS: list[str] = []


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with a tiny model and small editors."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    module = script("contexts", "docs/reports", monkeypatch)
    LOADS.clear()

    def load(name: str) -> LanguageModel:
        LOADS.append(name)
        return tiny.build("llama")

    monkeypatch.setattr(module, "load", load)

    def small(variant: Any) -> Any:
        what, editor = variant
        value = ValueSettings(steps=4, lr=0.2, confident_steps=editor.value.confident_steps)
        lengths = tuple((2, number // 5) for _, number in editor.prefix_lengths)
        text = Text(tokens=640, length=16)
        return what, Rome(layer=1, prefix_lengths=lengths, value=value, text=text, refuse_norm=1e9)

    monkeypatch.setattr(module, "VARIANTS", {name: small(one) for name, one in module.VARIANTS.items()})
    return module


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    write(tmp_path / "facts.jsonl", [record(number, subject) for number, subject in enumerate(SUBJECTS)])
    return [
        *("--data", str(tmp_path / "facts.jsonl"), "--offset", "1", "--facts", "4"),
        *("--work", str(tmp_path / "work"), "--docs", str(tmp_path / "docs")),
    ]


def test_collect_and_page(report: ModuleType, arguments: list[str], tmp_path: Path) -> None:
    collect = ["collect", *arguments]
    with pytest.raises(SystemExit, match="3"):
        report.REPORT.main([*collect, "--minutes", "0"])
    with pytest.raises(SystemExit, match="no fact is edited by all of"):
        report.REPORT.main([*collect, "--write"])
    report.REPORT.main([*collect, "--variants", "20,5"])
    report.REPORT.main(collect)
    assert len(LOADS) == 2
    data = json.loads((tmp_path / "docs" / "data" / "contexts.json").read_text())
    assert data["figures"]["subjects"] == SUBJECTS[1:]
    assert data["figures"]["timed_alike"] == [list(pair) for pair in report.COMPARISONS]
    assert list(data["figures"]["variants"]) == ["20", "5", "5-confident-3", "5-confident-6"]
    for name, found in data["figures"]["variants"].items():
        assert set(found["facts"]) == {*report.KEYS, "seconds"}
        assert all(len(values) == 4 for values in found["facts"].values())
        records = [json.loads(line) for line in (tmp_path / "work" / name / "cases.jsonl").read_text().splitlines()]
        kept = [record["after"]["values"]["paraphrase_magnitude"] for record in records]
        assert found["facts"]["paraphrase_magnitude"] == pytest.approx(kept)
        assert data["runs"][name][-1]["ended"]
    # Given again, nothing is edited.
    report.REPORT.main(collect)
    assert len(LOADS) == 2
    report.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    page = " ".join((tmp_path / "docs" / "contexts.md").read_text().split())
    assert "Of facts 2 to 5 of facts.jsonl, on which settings are chosen, 4 were edited by all" in page
    assert "**1 + 5 contexts are told apart from 1 + 20 contexts in " in page


def test_records_are_read_by_the_present_definitions(report: ModuleType, arguments: list[str], tmp_path: Path) -> None:
    report.REPORT.main(["collect", *arguments, "--variants", "20"])
    folder = tmp_path / "work" / "20"
    (folder / "made.json").unlink()
    lines = [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
    expected = [line["after"]["values"]["efficacy_magnitude"] for line in lines]
    for line in lines:
        line["after"]["values"]["efficacy_magnitude"] = 7.0  # by another definition
        del line["seal"]  # as an earlier version wrote them
    (folder / "cases.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report.REPORT.main(["collect", *arguments, "--variants", "20", "--write"])
    data = json.loads((tmp_path / "docs" / "data" / "contexts.json").read_text())
    assert data["figures"]["variants"]["20"]["facts"]["efficacy_magnitude"] == pytest.approx(expected)
    assert data["runs"]["20"] == []  # nothing is noted of them
