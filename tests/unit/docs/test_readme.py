"""The README's table of figures is what the leaderboard's data give."""

from __future__ import annotations

import re

import pages

KEYS = ("free_generation_strict", "paraphrase_free_generation_strict", "preservation", "perplexity_drift")
ROW = re.compile(r"^\| `(\w+)` \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", re.MULTILINE)


def test_the_figures_of_the_readme_are_in_the_data() -> None:
    view = pages.read_data("leaderboard")["figures"]["view"]
    [board] = [one for one in view["boards"] if (one["data"], one["mode"]) == ("counterfact", "batch")]
    cells = {row["label"]: row["cells"] for row in board["rows"]}
    rows = ROW.findall((pages.ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(rows) >= 8
    for editor, *shown in rows:
        values = [cells[editor][key]["value"] for key in KEYS]
        assert shown == [*(f"{100 * value:.0f}" for value in values[:3]), f"{values[3]:.2f}"], editor
