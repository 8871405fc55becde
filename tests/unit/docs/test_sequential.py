import json
from pathlib import Path
from typing import Any

import pages
import pytest
import sequential

from corrigenda.runs.folder import RunFolder
from eval.statistics.paired import PERMUTATIONS


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


def test_subjects_are_swapped_whole(tmp_path: Path) -> None:
    retained(tmp_path, "wise_whitened", [0.0] * 8, ["one"] * 8)
    retained(tmp_path, "rome", [1.0] * 8, ["one"] * 8)
    assert sequential.paired(tmp_path, "zsre")["rows"][0]["p"] == 1.0


def test_without_the_method_that_others_are_compared_with_there_is_no_table(tmp_path: Path) -> None:
    retained(tmp_path, "rome", [1.0] * 8, [str(n) for n in range(8)])
    assert sequential.paired(tmp_path, "zsre") == {}


def test_the_least_p_is_that_of_the_permutations_which_the_data_had(tmp_path: Path) -> None:
    """Data of the coarser test keep its p-values, so the page must not say that a smaller one was possible."""
    for one in pages.read_data("sequential")["digest"]["sets"].values():
        if one["rows"]:
            assert one["least"] == pytest.approx(min(row["holm"] for row in one["rows"]))
    subjects = [str(n) for n in range(8)]
    retained(tmp_path, "wise_whitened", [0.0] * 8, subjects)
    retained(tmp_path, "rome", [1.0] * 8, subjects)
    assert sequential.paired(tmp_path, "zsre")["permutations"] == PERMUTATIONS[-1]
