import json
from pathlib import Path
from typing import Any

import neurons


def record(number: int) -> dict[str, Any]:
    """A fact whose located neurons take 90 % of the answer's probability away, or double it; random ones do nothing."""
    sets = ["none", "random", "random top", "most active"]
    sets += [name for method in neurons.METHODS for name in (method, f"{method} top")]
    changed = {"suppress": dict.fromkeys(sets, 0.5), "enhance": dict.fromkeys(sets, 0.5)}
    for method in neurons.METHODS:
        for name in (method, f"{method} top"):
            changed["suppress"][name], changed["enhance"][name] = 0.05, 1.0
    # By editor: P(new), P(old), and whether the other fact's answer stays.
    made = {
        "none": (0.1, 0.5, True),
        "suppress": (0.1, 0.05, True),
        "enhance": (0.1, 0.9, True),
        "update 0.5": (0.3, 0.5, True),
        "update 1": (0.6, 0.5, number < 6) if number else (0.4, 0.5, True),
        "update 2": (0.6, 0.5, number < 2),
        "update 8": (0.6, 0.5, False) if number < 5 else (0.4, 0.5, False),
    }
    return {
        "id": str(number),
        "relation": "P36",
        "subject": f"subject {number}",
        "answer": f"answer {number % 2}",
        "seconds_to_locate": 3.0,
        "neurons": {"integrated_gradients": [[1, number], [2, 0]], "most active": [[1, number], [2, 5]]},
        "coarse": [4, 6],
        "by_layer": [0.1, 0.3, 0.2, 0.0, -0.1],
        "located": changed,
        "held_out": changed,
        "editors": {
            name: {"located": [new, old], "held_out": [new, old], "other": 0.5, "other_kept": kept}
            for name, (new, old, kept) in made.items()
        },
    }


def test_the_page_from_made_up_data(tmp_path: Path) -> None:
    way = {"code": "c0de", "commit": "abc", "versions": {"python": "3", "torch": "2", "transformers": "5"}}
    figures = {"least": 2, "most": 4, "top": 5, "facts": [record(number) for number in range(10)]}
    without = [record(number) | {"editors": {}} for number in range(6)]
    data = {
        "command": "python docs/reports/neurons.py collect --facts 10",
        "made": [way | {"machine": {"system": "Linux", "processor": "x86_64", "threads": 2}}],
        "runs": {"tiny: facts": [{"made": 0, "begun": "", "ended": "", "load": [0.0, 3.4]}]},
        "figures": {"models": {"tiny": figures, "other": {**figures, "most": 2, "facts": without}}},
    }
    data = json.loads(json.dumps(neurons.REPORT.digested(data)))
    [written] = neurons.REPORT.page(data, tmp_path)
    neurons.draw_layers(data, picture := tmp_path / "picture.png")
    text = " ".join(written.read_text().split())
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert text.startswith(
        "# Do knowledge neurons hold the fact? **On tiny, without its located neurons a fact's answer loses 90 %"
    )
    assert "Seconds are those of a machine that other work shared (load average 0.0 to 3.4)" in text
    assert "took 3 s." in text
    assert "10 facts of 1 relations; neurons were located on 2 to 4 wordings." in text
    assert "This gives 2.0 neurons a fact (median 2, 2 to 2; between 2 and 5 for 10 of 10), of 5 in a" in text
    assert "| located | -90.0 [-90.0, -90.0] | -90.0 [-90.0, -90.0] | 100.0 [100.0, 100.0] |" in text
    assert "Of the most active ones 50 % are located ones." in text
    assert "Suppress lowers P more than for random neurons: prompts located on: by 90.0 [90.0, 90.0] points" in text
    # Write 2: 10 of 10 and 2 of 10 (harmonic mean 33); write 1: 9 of 10 and 6 of 10 (72); write 8: 5 and 0.
    assert (
        "Updating has its highest share of successes at write 2 (100 % success, 20 % of the other answers kept)" in text
    )
    assert "are highest at write 1 (90 % and 60 %); not tested. The paper's 8, " in text
    assert " the value's norm, has 50 % and 0 %" in text
    # Of the other model no values were updated.
    assert "**On other, without its located neurons" in text
    assert text.count("### Updating") == text.count("of the other answers stay") == 1
    assert "6 facts of 1 relations; neurons were located on 2 wordings" in text
