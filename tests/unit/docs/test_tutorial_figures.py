import json
import re
from typing import Any

import pages
from omegaconf import OmegaConf

TUTORIAL = pages.DOCS / "tutorials" / "many-facts.md"


def row(data: str, editor: str) -> dict[str, Any]:
    """What the leaderboard has of an editor on 100 facts in one edit."""
    boards = json.loads((pages.DOCS / "data" / "leaderboard.json").read_text())["figures"]["view"]["boards"]
    [board] = [one for one in boards if (one["model"], one["data"], one["mode"]) == ("smollm2-135m", data, "batch")]
    found: dict[str, Any] = next(one for one in board["rows"] if one["label"] == editor)
    return found


def rate(cell: dict[str, Any], key: str = "value") -> str:
    return f"{100 * cell[key]:.1f}"


def test_each_figure_of_the_tutorial_is_in_the_data() -> None:
    wide = {data: row(data, "grace_wide")["cells"] for data in ("counterfact", "zsre")}
    memit = {data: row(data, "memit")["cells"] for data in ("counterfact", "zsre")}
    of_memit = json.loads((pages.DOCS / "data" / "many_facts.json").read_text())["figures"]["data"]["counterfact"]
    curve = {point["t"]: point["metrics"] for point in of_memit["memit_ratio_10"]["points"]}
    free, paraphrases = "free_generation_strict", "paraphrase_free_generation_strict"
    neighbours = wide["counterfact"]["neighbourhood_success"]
    expected = [
        *(rate(curve[t][key], "after") for key in (free, "preservation") for t in (300, 1000)),
        *(rate(wide[data][free]) for data in wide),
        rate(wide["counterfact"]["preservation"]),
        f"{wide['counterfact']['neighbourhood_kl']['value']:.1f}",
        *(rate(neighbours, key) for key in ("before", "value")),
        *(rate(memit["counterfact"][key]) for key in ("preservation", "neighbourhood_success")),
        *(rate(side[data][paraphrases]) for side in (wide, memit) for data in side),
    ]
    told = re.findall(r"\d+\.\d(?!\d)", TUTORIAL.read_text(encoding="utf-8"))
    assert told == expected


def test_the_leaderboards_grace_wide_is_what_ships() -> None:
    shipped = OmegaConf.load(pages.ROOT / "conf" / "editor" / "grace_wide.yaml")
    for data in ("counterfact", "zsre"):
        [run] = row(data, "grace_wide")["runs"]
        assert run["config"]["editor.widen"] == shipped.widen
