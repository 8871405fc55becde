import json
from pathlib import Path
from typing import Any

import ffn_lens
import pages
import pytest
import tiny

from corrigenda import Fact

SUBJECTS = ("Paris", "Rome", "Big Ben", "England")


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Any) -> list[str]:
    """A tiny model and facts of which it knows all but one; the command's arguments."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    lm = tiny.build("llama")
    facts = [known(lm, subject, number) for number, subject in enumerate(SUBJECTS)]
    unknown = Fact("London", "{} is located in the", facts[0].target_new, "piano", id="unknown")

    def read(source: Any, limit: int | None = None) -> list[Fact]:
        return [unknown, *facts[:1]] if source == "embedded" else facts[1:]

    monkeypatch.setattr(ffn_lens, "load", lambda name: lm)
    monkeypatch.setattr(ffn_lens, "read_facts", read)
    monkeypatch.setattr(ffn_lens, "insults", lambda: ("piano", "English", "a long insult"))
    monkeypatch.setattr(ffn_lens, "POLITE", ("Rome", "Paris"))
    monkeypatch.setattr(ffn_lens, "PROMPTS", ("Paris is in the", "Rome is in the"))
    strengths = {"insults": (-3.0, 3.0), "polite words": (3.0,), "random values": (3.0,)}
    monkeypatch.setattr(ffn_lens, "STRENGTHS", strengths)
    sizes = {"tokens": 400, "length": 10, "texts": 12, "exit-tokens": 640, "windows": 3, "facts": 3, "asked": 8}
    given = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    return ["collect", *given, "--work", str(tmp_path / "work"), "--docs", str(tmp_path / "docs")]


def test_the_page_of_a_tiny_model(tmp_path: Path, prepared: list[str]) -> None:
    ffn_lens.REPORT.main([*prepared, "--parts", "facts", "--worded", "2"])
    data = pages.read_data("ffn-lens", tmp_path / "docs")
    [(model, figures)] = data["figures"]["models"].items()
    assert ["rates" in one for one in figures["facts"]["known"]] == [True, True, False]
    assert list(data["digest"]["models"][model]["claims"]) == ["subject", "relation", "enriched", "extracted"]
    [cases] = (tmp_path / "work").glob("*/facts-*/cases.jsonl")
    lines = cases.read_text().splitlines()
    assert [("knockout" in json.loads(line)) for line in lines] == [False, True, True, True]
    with pytest.raises(SystemExit, match="no such part: faxts"):
        ffn_lens.REPORT.main([*prepared, "--parts", "faxts"])
    ffn_lens.REPORT.main(prepared)
    assert cases.read_text().splitlines() == lines  # what was there was not made again
    data = pages.read_data("ffn-lens", tmp_path / "docs")
    figures = data["figures"]["models"][model]
    assert figures["facts"]["asked"] == {"embedded": 2, "CounterFact": 2}
    rates = [one["rates"]["own"] for one in figures["facts"]["known"] if "rates" in one]
    assert [len(rate) for rate in rates] == [tiny.DEPTH] * 2
    assert (
        sum(row["peaked"] for row in figures["agreement"]["by_depth"].values()) == figures["agreement"]["peaked"]["n"]
    )
    assert sum(one["mean"] for one in figures["aggregation"]["cases"].values()) == pytest.approx(1)
    assert sum(figures["aggregation"]["settled"]) == figures["aggregation"]["positions"] == 12
    assert figures["steering"]["single"] == 2  # "a long insult" is none
    assert [len(row) for row in figures["steering"]["sets"]["insults"]["with"]] == [2, 2, 2]
    assert all(data["runs"][f"{model}: {name}"] for name in ffn_lens.ORDER)
    ffn_lens.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    text = " ".join((tmp_path / "docs" / "ffn-lens.md").read_text().split())
    assert "**3 that the model knows**, of 4 asked (2 embedded, 2 CounterFact)" in text
    assert "so this is no replication" in text
    for part in ("figures", "digest"):  # a model of which facts alone were followed
        whole = data[part]["models"][model]
        parts = ("n_layers", "d_ffn", "gated", "facts", "by_layer", "claims")
        data[part]["models"]["other"] = {name: whole[name] for name in parts if name in whole}
    claims = data["digest"]["models"]["other"]["claims"]
    names = ("subject", "relation", "enriched", "extracted")
    data["digest"]["models"]["other"]["claims"] = {name: claims[name] for name in names}
    pages.data_path("ffn-lens", tmp_path / "docs").write_text(json.dumps(data))
    ffn_lens.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    text = " ".join((tmp_path / "docs" / "ffn-lens.md").read_text().split())
    assert "**Of 4 claims of three papers about FFN memories that were tried," in text
    assert text.count("| not tried |") == 11
    assert "## Early exit, other" not in text
    for picture in ("text", "driven", "facts"):
        assert (tmp_path / "docs" / "figures" / f"ffn-lens-{picture}.png").read_bytes()[:4] == b"\x89PNG"
