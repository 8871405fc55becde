import json
from pathlib import Path
from typing import Any

import pages
import pytest
import sequential
import words

from corrigenda.runs.folder import RunFolder


def point(t: int, reliability: float) -> dict[str, Any]:
    metric = {"before": 0.1, "after": reliability, "low": reliability - 0.1, "high": reliability + 0.05, "n": t}
    keys = ("token_accuracy", sequential.EDITS, sequential.PARAPHRASES, "preservation", "perplexity_drift")
    return {
        "t": t,
        "n_failed": 1,
        "norm": 2.5,
        "seconds_per_edit": 3.0,
        "metrics": dict.fromkeys(keys, metric),
        "right_after": {"token_accuracy": metric},
        "fixed": {},
    }


def lines(methods: dict[str, Any], paired: dict[str, Any] | None = None) -> list[str]:
    """The page's lines, from the methods' curves on zsRE."""
    one = {"methods": methods, "same_form": {}, "paired": paired or {}}
    figures = {"model": "tiny", "data": {"zsre": one}}
    shown = sequential.shown({"figures": figures, "digest": sequential.digest(figures)})
    return words.rendered("sequential", {**shown, "provenance": ""}).splitlines()


def sequence(work: Path, data: str, method: str, points: list[dict[str, Any]]) -> Path:
    folder = work / data / method
    with pages.making(folder):
        for one in points:
            RunFolder(folder).append({"kind": "point", **one}, "journal")
    return folder


def test_of_several_sequences_the_one_that_went_furthest_counts(tmp_path: Path) -> None:
    sequence(tmp_path, "zsre-30", "rome", [point(10, 0.9), point(30, 0.8)])
    sequence(tmp_path, "zsre-300", "rome", [point(10, 0.9)])
    sequence(tmp_path, "zsre-300", "grace", [point(100, 0.7)])
    sequence(tmp_path, "counterfact-30", "rome", [point(10, 0.2)])
    (tmp_path / "zsre-300" / "wise").mkdir()  # begun, and no point yet
    found = sequential.gathered(tmp_path, "tiny")
    assert {data: list(found.figures["data"][data]["methods"]) for data in found.figures["data"]} == {
        "counterfact": ["ROME"],
        "zsre": ["ROME", "GRACE"],
    }
    assert [one["t"] for one in found.figures["data"]["zsre"]["methods"]["ROME"]] == [10, 30]
    assert set(found.runs) == {"counterfact rome", "zsre rome", "zsre grace"}
    assert all(len(entries) == 1 for entries in found.runs.values())


def test_the_page_from_made_up_data(tmp_path: Path) -> None:
    sequence(tmp_path / "work", "zsre-300", "rome", [point(10, 0.9), point(100, 0.4)])
    found = sequential.gathered(tmp_path / "work", "tiny")
    pages.write_data("sequential", "python docs/reports/sequential.py collect", found, tmp_path)
    sequential.REPORT.main(["digest", "--docs", str(tmp_path)])
    written, picture = sequential.page(pages.read_data("sequential", tmp_path), tmp_path)
    text = written.read_text()
    assert picture.name == "sequential-zsre.png"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert text.startswith(
        "# Many edits, one after another\n\n**On tiny, after 100 edits of zsre, made one after another"
    )
    assert "still said freely: ROME 40.0 %" in text
    assert "tiny, and no order but the file's" in text
    assert "| ROME (1 edit failed) | 100 | 40.0 [30.0, 45.0] | 40.0 [30.0, 45.0] |" in text
    assert "| ROME | 90.0; 90.0 | 40.0; 40.0 |" in text
    assert text.index("## The paper's WISE") < text.index("## How these figures were made")


def test_what_is_trained_anew_on_all_facts_is_no_sequence() -> None:
    methods = {"FT, all at once": [point(100, 1.0)], "ROME": [point(100, 0.4)], "GRACE": [point(30, 1.0)]}
    said = " ".join(lines(methods))
    assert "freely: ROME 40.0 %. Of" in said  # and what went less far is not put beside it


def retained(work: Path, key: str, right: list[float], subjects: list[str]) -> None:
    """A finished sequence of one method: the facts' reliability after its last edit."""
    folder = work / "zsre-30" / key
    folder.mkdir(parents=True)
    (folder / "done.json").write_text("{}")
    rows = [
        {"id": str(n), "fact": {"subject": subject}, "after": {"values": {"token_accuracy": value}}}
        for n, (value, subject) in enumerate(zip(right, subjects, strict=True))
    ]
    (folder / "retention.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_methods_are_compared_fact_by_fact(tmp_path: Path) -> None:
    subjects = [str(n) for n in range(8)]
    retained(tmp_path, "wise_whitened", [0.0] * 8, subjects)
    retained(tmp_path, "rome", [1.0] * 8, subjects)
    retained(tmp_path, "grace", [0.0] * 7 + [1.0], subjects)
    (tmp_path / "zsre-30" / "ft_m").mkdir()  # not finished
    found = sequential.paired(tmp_path, "zsre")
    rows = {row["method"]: row for row in found["rows"]}
    assert set(rows) == {"rome", "grace"}
    # Exact: of 2^8 swaps two are as extreme as eight differences of one sign; all are as extreme as one difference.
    assert rows["rome"]["p"] == pytest.approx(2 / 2**8)
    assert rows["rome"]["holm"] == pytest.approx(2 * 2 / 2**8)
    assert rows["rome"]["difference"] == 1.0
    assert rows["grace"]["p"] == 1.0
    assert rows["grace"]["difference"] == pytest.approx(1 / 8)
    said = lines({"ROME": [point(30, 0.4)]}, found)
    assert "| ROME | +100.0 (p = 0.016) |  |  |  |" in said
    assert "| GRACE | +12.5, not told apart |  |  |  |" in said


def test_what_is_not_told_apart_has_the_interval_that_its_p_stands_for() -> None:
    """A difference of two standard errors, by hand: p = 0.0455, and 1.96 / 2 of it on each side."""
    row = {"method": "rome", "metric": "token_accuracy", "n": 30, "difference": 0.1, "p": 0.0455, "holm": 0.2}
    for holm, cell in ((0.2, "+10.0 [0.2, 19.8], not told apart"), (0.0455, "+10.0 (p = 0.045)")):
        said = lines({"ROME": [point(30, 0.4)]}, {"rows": [row | {"holm": holm}]})
        assert f"| ROME | {cell} |  |  |  |" in said


def test_subjects_are_swapped_whole(tmp_path: Path) -> None:
    retained(tmp_path, "wise_whitened", [0.0] * 8, ["one"] * 8)
    retained(tmp_path, "rome", [1.0] * 8, ["one"] * 8)
    assert sequential.paired(tmp_path, "zsre")["rows"][0]["p"] == 1.0


def test_without_the_method_that_others_are_compared_with_there_is_no_table(tmp_path: Path) -> None:
    retained(tmp_path, "rome", [1.0] * 8, [str(n) for n in range(8)])
    assert sequential.paired(tmp_path, "zsre") == {}
    assert not any(line.startswith("Less WISE") for line in lines({"ROME": [point(30, 0.4)]}))
