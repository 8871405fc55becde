import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts import script

SMALL = (
    *("editor.text.tokens=640", "editor.text.length=16", "editor.prefix_lengths=[[2,2]]", "editor.value.steps=3"),
    *("editor.depth=0.9", "editor.tokens_per_coefficient=0", "editor.value.lr=0.2"),
)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_here: Callable[..., bool]) -> ModuleType:
    """The script, with small editors, and its runs in this process."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    module = script("rounds", "docs/reports", monkeypatch)
    changed = {name: one._replace(settings=(*SMALL, *one.settings)) for name, one in module.VARIANTS.items()}
    monkeypatch.setattr(module, "VARIANTS", changed)
    short = ("eval.max_new_tokens=4", "eval.preservation_tokens=3", "eval.perplexity_windows=3")
    monkeypatch.setattr(module, "SETTINGS", short)
    monkeypatch.setattr(module, "run", run_here)
    monkeypatch.setattr(sys.modules["many_facts_page"], "MIN_FACTS", 3)
    return module


@pytest.fixture
def arguments(few_facts: list[str]) -> list[str]:
    return ["--facts", "2-4,8-9", "--scored", "4", *few_facts]


def test_collect_and_page(report: ModuleType, arguments: list[str], runs: list[list[str]], tmp_path: Path) -> None:
    def collected(*more: str) -> dict[str, Any]:
        report.REPORT.main(["collect", *arguments, *more])
        found: dict[str, Any] = json.loads((tmp_path / "docs" / "data" / "rounds.json").read_text())
        return found

    with pytest.raises(SystemExit, match="3"):
        collected("--minutes", "1")
    first = collected("--variants", "1,2")
    assert ["editor.rounds=2" in one for one in runs] == [False, True]
    lines = (tmp_path / "store" / "facts.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [f"fact-{number}" for number in (1, 2, 3, 7, 8)]
    figures = first["figures"]
    assert (figures["n"], figures["scored"]) == (5, 4)
    one, two = (figures["variants"][name] for name in ("1", "2"))
    assert set(one["facts"]["token_accuracy"]["columns"]) == {"fact-1", "fact-2", "fact-7", "fact-8"}
    assert one["points"][0]["metrics"]["perplexity_drift"] != two["points"][0]["metrics"]["perplexity_drift"]
    # A variant is added where the store is gone, and one that is there is not made again.
    shutil.rmtree(tmp_path / "store")
    both = collected("--variants", "layers-1")
    collected("--variants", "layers-1")
    assert len(runs) == 3
    assert {name: both["figures"]["variants"][name] for name in ("1", "2")} == figures["variants"]
    report.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    page = " ".join((tmp_path / "docs" / "rounds.md").read_text().split())
    assert "Facts 2-4 and 8-9 of counterfact.json are written into" in page
    assert "| two rounds less one round (ratio 10, five layers) |" in page
    assert "| one round, one layer less one round (ratio 10, five layers) |" in page
    assert "| three rounds |" not in page
    with pytest.raises(SystemExit, match="differs in facts, n: give --anew"):
        collected("--facts", "2-6,8-9")


def test_what_facts_are_asked_for(report: ModuleType, arguments: list[str]) -> None:
    for wrong in ("0-3", "3-2", "9-13", "4", "a-b"):
        with pytest.raises(SystemExit, match=f"--facts {wrong}: write FIRST-LAST, of the 12 facts of the file"):
            report.REPORT.main(["collect", *arguments, "--facts", wrong])
