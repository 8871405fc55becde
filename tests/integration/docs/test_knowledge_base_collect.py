import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import knowledge_base as report
import pages
import pytest
import tiny
from made_entries import MadeUp

from corrigenda import LanguageModel
from corrigenda.knowledge.attached import Attached
from editing.knowledge.how import How

BENCHMARK: dict[str, Any] = {
    **{"entries": 1000, "d_ffn": 48, "d_model": 32, "entries_per_second": 5000.0, "insert_seconds": 0.002},
    **{"ratio": 0.9, "open_seconds": 0.003, "megabytes": 12.0, "key_width": 16},
    "rebuild": {
        **{"model": "tiny", "facts": 300, "solve_seconds": 600.0, "compile_seconds": 2.0},
        **{"rebuild_seconds": 3.01, "rebuild_ratio": 200.0},
    },
    "indices": [
        {
            **{"entries": 1000, "index": "exact", "recall": 1.0, "recall_of_8": 1.0, "build_seconds": 0.0},
            **{"query_seconds": 0.0005, "megabytes": 0.0},
        }
    ],
    "attached": [
        {
            **{"entries": 100, "index": "exact", "base_seconds": 2.0, "seconds": 2.05, "overhead": 0.025},
            "apply_seconds": 0.01,
        }
    ],
}


class MadeUpSolver(MadeUp):
    """Entries at one layer."""

    def settings(self, _lm: LanguageModel) -> dict[str, Any]:
        """Those that the entries name."""
        return {"steps": self.steps}


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lm = tiny.build("llama")
    settings = {"perplexity_windows": 3, "perplexity_window": 8, "max_new_tokens": 3, "preservation_tokens": 3}
    monkeypatch.setattr(report, "load", lambda name: lm)
    monkeypatch.setattr(report, "WAYS", {"emmet": "emmet", "attached": "emmet"})
    monkeypatch.setattr(report, "SETTINGS", replace(report.SETTINGS, **settings))
    monkeypatch.setattr(report, "how_named", lambda name: How(name, MadeUpSolver((1,)), Attached()))
    monkeypatch.setattr(report, "benchmarked", lambda more: BENCHMARK)
    monkeypatch.setattr(report, "LAYER", 1)
    monkeypatch.setattr(report, "KS", (4, 48))
    monkeypatch.setattr(report, "TIMES", 1)
    records = [
        {
            "id": f"fact-{number}",
            "subject": f"the {subject}",
            "prompt": "{} is in the city of",
            "target_new": "Rome",
            "neighbourhood": ["the north is in the city of"],
        }
        for number, subject in enumerate(["tower", "river", "piano"])
    ]
    path = tmp_path / "facts.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    parts = ["--data", str(path), "--offset", "1", "--facts", "2", "--work", str(tmp_path / "work")]
    return ["collect", *parts, "--docs", str(tmp_path / "docs")]


def test_collected_and_written(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        report.REPORT.main([*arguments, "--minutes", "0"])
    assert stopped.value.code == 3
    report.REPORT.main(arguments)
    data = pages.read_data(report.NAME, tmp_path / "docs")
    figures = data["figures"]
    assert figures["facts"] == {"from": 1, "n": 2, "subjects": 2}
    assert set(data["runs"]) == {"solved by emmet", "emmet", "attached", "families", "retrieval", "benchmark"}
    assert all(data["runs"].values())
    assert figures["ways"]["emmet"]["metrics"]["free_generation_strict"]["n"] == 2
    assert {one["family"] for one in figures["families"]} == set(tiny.CONFIGS)
    assert max(one[part] for one in figures["families"] for part in ("forward", "fold")) < 1e-5
    few, all_of_them = figures["retrieval"]["rows"]
    assert few["error"] >= few["least_error"] > all_of_them["error"]
    assert all_of_them["error"] < 1e-5
    # Gated: three matrices; with all of the 48 entries the search, which looks at all, comes on top.
    assert (all_of_them["cost"], all_of_them["without_search"]) == pytest.approx((4 / 3, 1.0))
    assert few["without_search"] == pytest.approx(4 / 48)
    notes = json.dumps(data["runs"])
    report.REPORT.main(arguments)  # all is there: nothing is run, and nothing noted
    assert json.dumps(pages.read_data(report.NAME, tmp_path / "docs")["runs"]) == notes

    report.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    text = (tmp_path / "docs" / f"{report.NAME}.md").read_text()
    assert "records 2 to 3" in text
    assert "5,000 a second are inserted without solving" in text
    assert "takes 600 s to solve; compiled again after one was withdrawn, 3.0" in text
    assert "| exact | 100.0 | 100.0 | 0.00 | 0.50 | 0.0 |" in text
    assert "took 2.5 to 2.5 % longer with 100 to 100 entries" in text
    assert text.index("## The store") < text.index("## How these figures were made")
