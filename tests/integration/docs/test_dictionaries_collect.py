import json
from functools import partial
from pathlib import Path

import dictionaries
import pages
import pytest
from dictionary_parts import SMALL

from corrigenda import Fact, LanguageModel
from jobs.dictionary import DictionarySettings


def test_a_page_of_a_tiny_model(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(dictionaries, "load", lambda name: lm)
    monkeypatch.setattr(dictionaries, "DictionarySettings", partial(DictionarySettings, features=96, k=5, **SMALL))
    names = ("Paris", "Rome", "Big Ben")
    facts = [Fact(name, "{} is located in the", "English", "France", id=name) for name in names]
    (path := tmp_path / "facts.jsonl").write_text("".join(json.dumps(fact.to_dict()) + "\n" for fact in facts))
    asked = ["collect", "--data", str(path), *"--layer 1 --tokens 500 --sampled 0 --first 2 --facts 2".split()]
    asked += ["--work", str(tmp_path / "work"), "--docs", str(tmp_path / "docs")]
    dictionaries.REPORT.main([*asked, "--without-control"])
    dictionaries.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    assert "The control was not run yet." in " ".join((tmp_path / "docs" / "dictionaries.md").read_text().split())
    dictionaries.REPORT.main(asked)
    dictionaries.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    data = pages.read_data("dictionaries", tmp_path / "docs")
    [one] = data["figures"]["models"].values()
    assert one["model"]["explained"] != one["random"]["explained"]
    assert [each["id"] for each in one["steered"]] == ["Rome", "Big Ben"]
    assert all(each["chosen"]["feature"] != each["drawn"]["feature"] for each in one["steered"])
    gains = [each["chosen"]["efficacy_magnitude"] - each["before"]["efficacy_magnitude"] for each in one["steered"]]
    assert max(map(abs, gains)) > 0
    text = (tmp_path / "docs" / "dictionaries.md").read_text()
    assert f"| explained variance, % | {100 * one['model']['explained']:.1f} |" in text
    assert "not run yet" not in text
    assert (tmp_path / "docs" / "figures" / "dictionaries.png").stat().st_size > 5_000
