import re
from collections.abc import Mapping
from typing import Any

import pages

KEYS = ("free_generation_strict", "paraphrase_free_generation_strict", "preservation")
SMALLEST, LARGER = "smollm2-135m", "qwen2.5-coder-0.5b"
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| (\S+) \| (\S+) \| (\S+) \| [^|]+ \|$", re.MULTILINE)


def leaderboard(mode: str, editor: str, model: str = SMALLEST) -> Mapping[str, Any]:
    boards = pages.read_data("leaderboard")["figures"]["view"]["boards"]
    [board] = [one for one in boards if (one["model"], one["data"], one["mode"]) == (model, "counterfact", mode)]
    [cells] = [row["cells"] for row in board["rows"] if row["label"] == editor]
    return {key: cells[key]["value"] for key in KEYS}


def knowledge_base(way: str) -> Mapping[str, Any]:
    metrics = pages.read_data("knowledge-base-figures")["figures"]["ways"][way]["metrics"]
    return {key: metrics[key]["after"] for key in KEYS}


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
        *(leaderboard("batch", editor, LARGER) for editor in ("scoped", "memit", "rome")),
    ]
    shown = [row for row in rows if row != ("---",) * 3 and row[0] != "says"]
    assert len(shown) == len(figures)
    for row, values in zip(shown, figures, strict=True):
        for cell, key in zip(row, KEYS, strict=True):
            # zsRE's locality questions rank nothing (docs/limits.md), so the README leaves them out.
            if cell != "-":
                assert cell == f"{100 * values[key]:.0f}", (row, key)
    assert [cell for row in shown for cell in row].count("-") == 1


def test_the_yardsticks_of_the_readme_are_in_the_data() -> None:
    of = pages.read_data("yardsticks")["digest"]["sets"]["smollm2-135m counterfact 1-100"]
    text = " ".join((pages.ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"keeps {100 * of['floor']['preservation']['mean']:.0f} % of those ten words" in text
    assert f"says {100 * of['unedited']['native_consistency']['mean']:.0f} % on paraphrases" in text
