import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import relations
import tiny
from relation_parts import known

SHARES = ("accuracy", "faithfulness", "identity", "translation", "bias", "embedding", "causality", "substitution")


def relation(name: str, share: float, n_known: int = 8) -> dict[str, Any]:
    """What a relation's summary says, of made figures."""
    figures = {one: {"share": share, "low": None, "high": None} for one in SHARES}
    place = {"layer": 3, "beta": 1.5, "rank": 64, "n_training": 8, "n_tests": 10, "n_known": n_known, "n_pairs": 4}
    return {"relation": name, **place, **figures}


def page(folder: Path, found: dict[str, dict[str, Any]]) -> str:
    files = dict.fromkeys((*found, "later"), 18)
    figures = {"models": {"toy": {"samples": 8, "tests": 10, "files": files, "relations": found}}}
    made = {"page": relations.NAME, "made": [], "runs": {}, "figures": figures}
    [path] = relations.REPORT.page(relations.REPORT.digested(made), folder)
    return " ".join(path.read_text(encoding="utf-8").split())


def test_relations_with_few_known_samples_count_in_no_mean(tmp_path: Path) -> None:
    found = {"a": relation("first", 0.5), "b": relation("second", 0.25), "c": relation("third", 1.0, n_known=4)}
    said = page(tmp_path, found | {"d": {"relation": "fourth", "n_known": 0}})
    assert "4 of 5 relations were run" in said
    assert "| first | 8 of 10 | 3 | 1.5 | 64 | 50 | 50 |" in said
    assert "| *mean* | | | | | 38 (" in said  # of 50 and 25 %
    assert "third |" not in said
    assert "Too few known samples: third (4), fourth (0)." in said
    assert "Not run yet (1): later." in said
    assert "too few to say whether faithfulness" in said


def test_four_relations_have_a_correlation(tmp_path: Path) -> None:
    found = {str(n): relation(str(n), n / 10) for n in range(1, 6)}
    assert "by Spearman's rho of 1.00 (1.00 to 1.00)" in page(tmp_path, found)


def test_it_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build("llama")
    for name in ("tongue", "other"):
        samples = [{"subject": fact.subject, "object": fact.target_true} for fact in known(lm)]
        record = {"name": name, "prompt_templates": ["the language of {} is"], "samples": samples}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    monkeypatch.setattr(relations, "load", lambda name: lm)
    parser = argparse.ArgumentParser()
    parser.add_argument("--docs", type=Path, default=tmp_path / "docs")
    relations.options(parser)
    given = ["--data", str(tmp_path), "--work", str(tmp_path / "work"), "--samples", "4"]
    first = relations.collect(parser.parse_args([*given, "--relations", "tongue"]))
    assert first is not None
    assert list(first.figures["models"][lm.name]["relations"]) == ["tongue"]
    calls: list[Path] = []

    def nothing(lm: object, file: Path, decoding: object) -> dict[str, int]:
        calls.append(file)
        return {"n_known": 0}

    monkeypatch.setattr(relations, "figures_of", nothing)
    both = relations.collect(parser.parse_args(given))
    assert both is not None
    assert [file.stem for file in calls] == ["other"]
    [one] = both.figures["models"].values()
    assert one["relations"]["tongue"] == first.figures["models"][lm.name]["relations"]["tongue"]
    assert one["relations"]["other"] == {"n_known": 0}
    assert len(both.runs) == 2
    with pytest.raises(SystemExit, match="no such relation: a, b"):
        relations.collect(parser.parse_args([*given, "--relations", "b,a"]))
