import re
from collections.abc import Mapping
from typing import Any

import pages

MODEL = "qwen2.5-coder-0.5b"
KEYS = ("free_generation_strict", "paraphrase_free_generation_strict", "answer_kept")
ROW = re.compile(r"^\| [^|]+ \| `(\w+)`[^|]* \| (\S+) \| (\S+) \| (\S+) \|$", re.MULTILINE)
README = (pages.ROOT / "README.md").read_text(encoding="utf-8")


def cells(mode: str, editor: str) -> Mapping[str, Any]:
    boards = pages.read_data("leaderboard")["figures"]["view"]["boards"]
    [board] = [one for one in boards if (one["model"], one["data"], one["mode"]) == (MODEL, "counterfact", mode)]
    [found] = [row["cells"] for row in board["rows"] if row["label"] == editor]
    return {key: found[key]["value"] for key in KEYS}


def test_the_figures_of_the_readme_are_in_the_data() -> None:
    rows = ROW.findall(README)
    assert len(rows) > 5
    for number, (editor, *shown) in enumerate(rows):
        values = cells("batch" if number else "single", editor)
        assert shown == [f"{100 * values[key]:.0f}" for key in KEYS], editor


def test_the_text_below_them_is_in_the_data() -> None:
    text = " ".join(README.split())
    leave = [cells("batch", editor)["answer_kept"] for editor in ("lora", "memoir", "t_patcher", "wise_whitened")]
    assert f"leave {100 * min(leave):.0f} to {100 * max(leave):.0f} % of the other answers" in text
    shown = pages.read_data("frontier")["digest"]["shown"]
    of = {
        row: shown[f"{MODEL} counterfact 300"]["rows"][row]["answer_kept_same_subject"] for row in ("memit", "scoped")
    }
    assert f"`memit` keeps {100 * of['memit']['mean']:.0f} % of the answers to other questions" in text
    assert f"`scoped` {100 * of['scoped']['mean']:.0f} % ([frontier]" in text
    smallest = shown["smollm2-135m counterfact 300"]["rows"]["scoped"]["paraphrase_free_generation_strict"]
    assert f"SmolLM2-135M says {100 * smallest['mean']:.0f} % of the paraphrases" in text


def test_the_yardsticks_of_the_readme_are_in_the_data() -> None:
    of = pages.read_data("yardsticks")["digest"]["sets"][f"{MODEL} counterfact 1-100"]
    text = " ".join(README.split())
    assert f"keeps {100 * of['floor']['answer_kept']['mean']:.0f} % of those answers" in text
    native = of["unedited"]["native_consistency"]
    assert (
        f"says {100 * native['mean']:.0f} % on paraphrases ({100 * native['low']:.0f} to {100 * native['high']:.0f};"
        in text
    )
