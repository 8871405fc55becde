import importlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SMALL = (
    *("editor.text.tokens=640", "editor.text.length=16", "editor.prefix_lengths=[[2,2]]", "editor.value.steps=3"),
    *("editor.depth=0.9", "editor.tokens_per_coefficient=0", "editor.value.lr=0.2"),
)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_here: Callable[..., bool]) -> ModuleType:
    """The script, with small editors, and its runs in this process."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "reports"))
    for name in (
        "rounds",
        "contexts",
        "many_facts",
        "many_facts_page",
        "runs",
        "words",
        "leaderboard",
        "sequential",
        "layers",
        "pages",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("rounds")
    changed = {name: replace(one, settings=(*SMALL, *one.settings)) for name, one in module.VARIANTS.items()}
    monkeypatch.setattr(module, "VARIANTS", changed)
    monkeypatch.setattr(module, "SETTINGS", ("eval.max_new_tokens=4", "eval.perplexity_windows=3"))
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


def test_the_comparison_is_paired(report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By hand: three facts of ten are won, none is lost; McNemar's p is 2 * 0.5^3, and the finding says no more."""
    monkeypatch.setattr(sys.modules["many_facts_page"], "MIN_FACTS", 10)

    def side(said: int) -> dict[str, Any]:
        held = [float(number < said) for number in range(10)]
        value = {"before": 0.0, "after": said / 10, "low": 0.0, "high": 1.0, "n": 10}
        facts = {
            "subjects": {str(number): str(number) for number in range(10)},
            "columns": {str(number): [one] for number, one in enumerate(held)},
        }
        metrics = dict.fromkeys(report.TESTED, value)
        return {"points": [{"t": 10, "metrics": metrics}], "facts": dict.fromkeys(report.TESTED, facts)}

    variants = {"1": side(5), "2": side(8), "3": side(8)}
    about = {"model": "m", "data": "d", "facts": "1-300", "n": 300, "scored": 10}

    def page(variants: dict[str, Any]) -> str:
        data = {"figures": about | {"variants": variants}, "runs": {}, "made": []}
        [path] = report.REPORT.page(report.REPORT.digested(data), tmp_path)
        return " ".join(path.read_text().split())

    compared = report.digest(about | {"variants": variants})["compared"]
    assert [(one["left"], one["right"], tuple(one["tests"])) for one in compared] == [
        *(("2", "1", report.TESTED), ("3", "2", report.TESTED))
    ]
    test = compared[0]["tests"]["free_generation_strict"]
    assert test["difference"] == pytest.approx(0.3)
    assert test["p"] == 1.0  # 0.25, six times over by Holm
    text = page(variants)
    assert "**Of 300 zsRE facts in one edit m says 50.0 [0.0, 100.0] % when they are written once" in text
    assert "A third round is told apart from two in nothing (of the 3 figures tested below)" in text
    assert "zsRE" not in page({"1": variants["1"]})
