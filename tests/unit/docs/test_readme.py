import re
from collections.abc import Mapping
from typing import Any

import pages

KEYS = ("free_generation_strict", "paraphrase_free_generation_strict", "preservation")
SMALLEST = "smollm2-135m"
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| (\S+) \| (\S+) \| (\S+) \| ([^|]+) \|$", re.MULTILINE)


def leaderboard(mode: str, editor: str) -> Mapping[str, Any]:
    boards = pages.read_data("leaderboard")["figures"]["view"]["boards"]
    [board] = [one for one in boards if (one["model"], one["data"], one["mode"]) == (SMALLEST, "counterfact", mode)]
    [cells] = [row["cells"] for row in board["rows"] if row["label"] == editor]
    return {key: cells[key]["value"] for key in KEYS}


def knowledge_base(way: str) -> Mapping[str, Any]:
    metrics = pages.read_data("knowledge-base-figures")["figures"]["ways"][way]["metrics"]
    return {key: metrics[key]["after"] for key in KEYS}


def frontier(row: str) -> Mapping[str, Any]:
    found = pages.read_data("frontier")["digest"]["shown"]["qwen2.5-coder-0.5b counterfact 300"]["rows"][row]
    keys = (*KEYS[:2], "answer_kept_same_subject", "answer_kept")
    return {key: found[key] and found[key]["mean"] for key in keys}


def rounds() -> Mapping[str, Any]:
    [point] = pages.read_data("many_facts")["figures"]["data"]["zsre"]["memit_rounds_together"]["points"]
    assert point["t"] == 300
    return {key: point["metrics"][key]["after"] for key in KEYS}


def test_the_figures_of_the_readme_are_in_the_data() -> None:
    rows = ROW.findall((pages.ROOT / "README.md").read_text(encoding="utf-8"))
    figures = [
        leaderboard("single", "rome"),
        knowledge_base("emmet"),
        leaderboard("batch", "memit"),
        rounds(),
        leaderboard("batch", "grace"),
        knowledge_base("attached"),
        leaderboard("batch", "random"),
        *map(frontier, ("scoped", "memit")),
    ]
    shown = [row for row in rows if row[0] != "---"]
    assert len(shown) == len(figures)
    for row, values in zip(shown, figures, strict=True):
        for cell, key in zip(row, values, strict=False):  # the first table names a page where the second has a figure
            # zsRE's locality questions rank nothing (docs/limits.md).
            if cell != "-":
                assert cell == f"{100 * values[key]:.0f}", (row, key)
    assert [cell for row in shown for cell in row].count("-") == 1


def test_the_yardsticks_of_the_readme_are_in_the_data() -> None:
    of = pages.read_data("yardsticks")["digest"]["sets"]["smollm2-135m counterfact 1-100"]
    text = " ".join((pages.ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"keeps {100 * of['floor']['preservation']['mean']:.0f} % of those ten words" in text
    assert f"says {100 * of['unedited']['native_consistency']['mean']:.0f} % on paraphrases" in text
