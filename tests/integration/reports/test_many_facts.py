import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts import script

from corrigenda.system.files import write_json

SMALL = ("editor.text.tokens=640", "editor.text.length=16", "editor.prefix_lengths=[[2,2]]", "editor.value.steps=3")
CLOSED = (*SMALL, "editor.layers=[1,2]", "editor.tokens_per_coefficient=0", "editor.value.lr=0.2")
CHANGES: dict[str, tuple[str, ...]] = {
    "none": (),
    "memit": CLOSED,
    "memit_plain": CLOSED,
    "rome": (*SMALL, "editor.layer=1"),
    "random": (),
}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_here: Callable[..., bool]) -> ModuleType:
    """The script, with small editors, and its runs in this process."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    module = script("many_facts", "docs/reports", monkeypatch)
    methods = {
        name: module.METHODS[name]._replace(settings=(*module.METHODS[name].settings, *changes))
        for name, changes in CHANGES.items()
    }
    methods["later"] = module.METHODS["none"]._replace(title="later", editor="not_made_yet")
    for part in (module, sys.modules["many_facts_page"]):
        monkeypatch.setattr(part, "METHODS", methods)
    monkeypatch.setattr(module, "FIXED", 2)
    short = ("eval.max_new_tokens=4", "eval.preservation_tokens=3", "eval.perplexity_windows=3")
    monkeypatch.setattr(module, "SETTINGS", short)
    monkeypatch.setattr(sys.modules["many_facts_page"], "MIN_FACTS", 3)
    monkeypatch.setattr(module, "run", run_here)
    return module


@pytest.fixture
def arguments(few_facts: list[str]) -> list[str]:
    return [
        *("--t", "8", "--batch", "2", "--scored", "4", "--checkpoints", "2,4", "--order-t", "4", "--orders", "2"),
        *few_facts,
    ]


def test_collect_and_page(
    report: ModuleType,
    arguments: list[str],
    runs: list[list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collect = ["collect", *arguments]
    with pytest.raises(SystemExit, match="3"):
        report.REPORT.main([*collect, "--minutes", "1"])
    said = capsys.readouterr().out
    assert "there are no such editors here: later" in said
    # All but the controls in the other order, too.
    assert "8 sequences are left" in said
    report.REPORT.main(collect)
    assert len(runs) == 8
    [like] = [one for overrides in runs for one in overrides if one.startswith("editor.like.run=")]
    assert str(tmp_path / "store" / "rome") in like
    data = json.loads((tmp_path / "docs" / "data" / "many_facts.json").read_text())
    figures = data["figures"]
    assert (figures["d_ffn"], figures["batch"], figures["not_run"]) == (48, 2, ["later"])
    methods = figures["data"]["counterfact"]
    assert set(methods) == set(CHANGES)
    for name, found in methods.items():
        assert [point["t"] for point in found["points"]] == [2, 4, 8]
        assert [point["n_scored"] for point in found["points"]] == [2, 4, 4]
        assert {order: len(points) for order, points in found["orders"].items()} == (
            {} if name in ("none", "random") else {"1": 2}
        )
        for t, facts in found["facts"].items():
            assert len(facts["columns"]) == min(int(t), 4)
            assert all(len(columns) == 3 for columns in facts["columns"].values())  # the parts of the score
    assert set(methods["memit"]["facts"]["8"]["columns"]) == {"fact-0", "fact-1", "fact-6", "fact-7"}
    assert methods["memit"]["points"][-1]["metrics"] != methods["memit_plain"]["points"][-1]["metrics"]
    # Nothing is done twice, and the page needs no model.
    report.REPORT.main(collect)
    assert len(runs) == 8
    monkeypatch.setattr(report, "load", None)
    report.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    page = (tmp_path / "docs" / "many_facts.md").read_text()
    assert "| after 8 | free | free, paraphrases |" in page
    assert "| after 4 |" in page
    assert "| after 2 |" not in page  # the smallest T is in the picture and the data
    assert "Not run: later." in page
    assert "| MEMIT 0.1 less plain MEMIT 0.1 | 8 |" in page
    assert "after 4 facts in the same order: means of 2" in page
    assert page.rstrip().splitlines()[-1].startswith("[data/many_facts.json]")
    assert (tmp_path / "docs" / "figures" / "many_facts-counterfact.png").is_file()


@pytest.mark.slow
def test_a_method_that_goes_further(
    report: ModuleType, arguments: list[str], runs: list[list[str]], tmp_path: Path
) -> None:
    path = tmp_path / "docs" / "data" / "many_facts.json"

    def collected(*more: str) -> dict[str, Any]:
        report.REPORT.main(["collect", *arguments, "--orders", "1", *more])
        found: dict[str, Any] = json.loads(path.read_text())["figures"]["data"]["counterfact"]
        return found

    arguments.append("job.sequential.ends=2")
    short = collected("--methods", "none,memit", "--t", "4", "--checkpoints", "2,4")
    collected("--methods", "memit", "--t", "8", "--checkpoints", "4,8")
    assert len(runs) == 3
    both = collected("--methods", "none,memit", "--t", "8", "--write")
    assert both["none"] == short["none"]
    assert [point["t"] for point in both["memit"]["points"]] == [2, 4, 8]
    assert both["memit"]["points"][:2] == short["memit"]["points"]
    assert set(both["memit"]["facts"]) == {"2", "4", "8"}
    report.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    page = " ".join((tmp_path / "docs" / "many_facts.md").read_text().split())
    assert "| after 8 |" in page


@pytest.mark.slow
def test_methods_are_added_to_the_data_of_a_store_that_is_gone(
    report: ModuleType, arguments: list[str], runs: list[list[str]], tmp_path: Path
) -> None:
    path, store = tmp_path / "docs" / "data" / "many_facts.json", tmp_path / "store"

    def collected(methods: str, *more: str) -> dict[str, Any]:
        report.REPORT.main(["collect", *arguments, "--t", "4", "--checkpoints", "2,4", "--methods", methods, *more])
        shutil.rmtree(store)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    tuning: dict[str, Any] = {"facts": "facts 9 to 10", "scored": 2, "most_drift": 0.1}
    tuning["methods"] = {"memit": {"trials": [], "chosen": {"ratio": 3.0}}}
    write_json(store / "tuning.json", tuning)
    first = collected("none,memit", "--orders", "1")
    both = collected("memit_plain,rome", "--orders", "2")
    # What was chosen for MEMIT is known without its store: MEMIT, plain, takes it.
    assert both["figures"]["tuning"] == tuning
    assert all("editor.ratio=3" in one for one in runs if "editor=memit_plain" in one)
    methods = both["figures"]["data"]["counterfact"]
    assert list(methods) == ["none", "memit", "memit_plain", "rome"]
    for name in ("none", "memit"):
        assert methods[name] == first["figures"]["data"]["counterfact"][name]
    assert both["figures"]["not_run"] == ["later", "random"]
    assert [len(methods[name]["orders"]) for name in methods] == [0, 0, 1, 1]
    assert set(both["runs"]) > set(first["runs"])
    assert both["earlier"] == [first["command"]]
    report.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    page = " ".join((tmp_path / "docs" / "many_facts.md").read_text().split())
    assert "| plain MEMIT 0.1 |" in page
    # With --lacking only the order that the file does not have is run.
    runs.clear()
    other = collected("none,memit", "--orders", "2", "--lacking")
    assert ["data.order=1" in one for one in runs] == [True]
    of_memit = other["figures"]["data"]["counterfact"]["memit"]
    assert {**of_memit, "orders": {}} == methods["memit"]
    assert [len(points) for points in of_memit["orders"].values()] == [2]
    with pytest.raises(SystemExit, match=r"many_facts.json is of scored 4: give --anew"):
        collected("none", "--orders", "1", "--scored", "3")
    assert set(collected("none", "--orders", "1", "--scored", "3", "--anew")["figures"]["data"]["counterfact"]) == {
        "none"
    }


def test_what_stays_of_the_data_and_what_is_replaced(report: ModuleType) -> None:
    """By hand: a point gives way to one of a run as long or shorter, never to one of a longer run."""

    def method(limits: dict[str, int], mark: str, orders: dict[str, str] | None = None) -> dict[str, Any]:
        points = [{"t": int(t), "mark": mark} for t in limits]
        return {"points": points, "facts": dict.fromkeys(limits, mark), "limits": limits, "orders": orders or {}}

    def marks(found: dict[str, Any]) -> list[tuple[int, str, str, int]]:
        return [(p["t"], p["mark"], found["facts"][str(p["t"])], found["limits"][str(p["t"])]) for p in found["points"]]

    old = {
        "zsre": {"memit": method({"2": 4, "4": 4}, "old", {"1": "old", "2": "old"}), "gone": method({"2": 2}, "old")}
    }
    longer = report.added(old, {"zsre": {"memit": method({"2": 8, "8": 8}, "new")}})["zsre"]["memit"]
    assert marks(longer) == [(2, "old", "old", 4), (4, "old", "old", 4), (8, "new", "new", 8)]
    again = report.added(
        {"zsre": {"memit": longer}}, {"zsre": {"memit": method({"2": 4, "8": 8}, "later", {"2": "x"})}}
    )
    assert marks(again["zsre"]["memit"]) == [(2, "later", "later", 4), (4, "old", "old", 4), (8, "later", "later", 8)]
    assert again["zsre"]["memit"]["orders"] == {"1": "old", "2": "x"}
    other = report.added(old, {"counterfact": {"rome": method({"2": 2}, "new")}})
    assert [(data, list(methods)) for data, methods in other.items()] == [
        ("zsre", ["memit"]),
        ("counterfact", ["rome"]),
    ]
