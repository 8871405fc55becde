from pathlib import Path
from typing import Any

import pages
import pytest
from ffn_lens import REPORT
from ffn_lens_findings import Verdict, above, apart, at_events_layers, both, claims, negative

from corrigenda.data.word_lists import insults
from eval import has_word_of


def mean(value: float, width: float = 0.01, n: int = 50) -> dict[str, Any]:
    return {"mean": value, "low": value - width, "high": value + width, "n": n}


def fact(up: bool) -> dict[str, Any]:
    """Of a model of four layers: the subject is read in layer 3 and the relation in 1, or the other way round."""
    upper, lower = [-0.1, -0.2, -0.3, -0.9], [-0.1, -0.5, -0.3, -0.2]
    own, other = ([0.1, 0.1, 0.4, 0.4], [0.1, 0.1, 0.2, 0.2])[:: 1 if up else -1]
    found, missed = [5, 5, 0, 3], [9, 9, 9, 9]
    return {
        "set": "embedded",
        "knockout": {"sources": ["subject", "relation"], "changes": [upper, lower] if up else [[0.2] * 4, upper]},
        "ranks": dict(zip(("attention", "ffn"), (found, missed)[:: 1 if up else -1], strict=True)) | {"state": found},
        "rates": {"own": own, "other": other},
    }


def figures(up: bool) -> dict[str, Any]:
    """Figures by which all claims replicate, or none does."""
    high, low = (0.9, 0.1) if up else (0.1, 0.9)
    removed = (
        {"shallow": (-high, -0.3), "deep": (-0.5, -0.3)} if up else {"shallow": (-0.1, -0.3), "deep": (-0.2, -0.3)}
    )
    cases = {name: mean(0.25) for name in ("residual", "agreement", "override", "composition")}
    pair = {"there": mean(high), "elsewhere": mean(low), "difference": mean(high - low)}
    before, after = [1.0] * 15 + [0.0] * 5, [0.0] * 18 + [1.0] * 2
    rows = [before, after] if up else [after, before]
    steered = {
        "rows": [
            {"strength": 0.0, "share": [sum(rows[0]) / 20, None, None], "drift": [0.0, 0.0, 0.0]},
            {"strength": 3.0, "share": [sum(rows[1]) / 20, None, None], "drift": [0.1, 0.0, 0.2]},
        ],
        "with": rows,
    }
    return {
        "n_layers": 4,
        "sensitivity": {
            "by_depth": {
                depth: {"last": mean(last), "first": mean(other), "random": mean(other)}
                for depth, (last, other) in removed.items()
            }
        },
        "agreement": {
            "chance": 1e-5,
            "by_depth": {
                "lower": {"agreement": mean(low), "permuted": mean(low), "peaked": 10},
                "upper": {"agreement": mean(high), "permuted": mean(0.5), "peaked": 90 if up else 10},
            },
            "peaked": {"n": 100},
        },
        "aggregation": {
            "alone": mean(high),
            "by_layer": {"alone": {"0": mean(high), "1": mean(high)}},
            "settled_in_lower_half": mean(high),
            "cases": cases,
            "composed_of_changed": mean(high),
        },
        "sub_updates": {
            "dominant": 10,
            "compared": dict.fromkeys(("highest", "mean", "lowest", "promotion", "elimination"), pair),
            "at_events": {"net": mean(high - low)},
            "events": [0, 0, 5, 15],
            "scores_by_layer": {"mean": [mean(high), mean(high), mean(low), mean(low)] if up else [mean(high)] * 4},
        },
        "steering": {"sets": {"polite words": steered}},
        "facts": {"known": [fact(up) for _ in range(9)]},
    }


def test_a_verdict_is_of_the_whole_interval() -> None:
    assert above(mean(0.5, 0.1), 0.3) == "replicates"
    assert above(mean(0.5, 0.1), 0.45) == "open"
    assert above(mean(0.5, 0.1), 0.7) == "does not replicate"
    assert above(mean(0.5) | {"low": None, "high": None}, 0.3) == above(None, 0.3) == "open"
    one, other = mean(0.5, 0.1), mean(0.25, 0.125)
    assert (apart(one, other), apart(other, one), apart(one, one)) == ("replicates", "does not replicate", "open")
    assert negative(other) == {"mean": -0.25, "low": -0.375, "high": -0.125, "n": 50}
    assert both("replicates", "open") == "open"
    assert both("open", "does not replicate", "replicates") == "does not replicate"


@pytest.mark.parametrize(("up", "verdict"), [(True, "replicates"), (False, "does not replicate")])
def test_claims_follow_the_figures(up: bool, verdict: Verdict) -> None:
    found = claims(figures(up))
    assert len(found) == 15
    assert {name: one["verdict"] for name, one in found.items() if one["verdict"] != verdict} == {}


def test_three_texts_of_forty_decide_nothing() -> None:
    found = figures(True)
    [steered] = found["steering"]["sets"].values()
    steered["with"] = [[1.0] * 3 + [0.0] * 37, [0.0] * 40]
    claim = claims(found)["steering"]
    assert claim["verdict"] == "open"
    assert claim["best"]["p"] == pytest.approx(0.25, abs=0.02)  # a sample of permutations
    steered["with"] = [[1.0] * 8 + [0.0] * 32, [0.0] * 40]
    assert claims(found)["steering"]["verdict"] == "replicates"
    steered["rows"][1]["drift"] = [1.0, 0.9, 1.1]
    assert claims(found)["steering"]["verdict"] == "does not replicate"


def test_settling_is_compared_with_the_same_layers() -> None:
    given = figures(True)
    scores = given["sub_updates"]["scores_by_layer"]
    scores["mean"] = [mean(0.0), mean(0.0), mean(0.1), mean(0.5)]
    same = at_events_layers(given["sub_updates"], "mean")
    assert same == pytest.approx({"mean": 0.25 * 0.1 + 0.75 * 0.5, "low": 0.39, "high": 0.41, "n": 20})
    assert claims(given)["promoted"]["verdict"] == "replicates"
    scores["mean"][3] = mean(1.17)  # the last layer scores as much wherever the prediction settles
    assert claims(given)["promoted"]["verdict"] == "open"


def test_what_was_not_measured_is_open() -> None:
    given = figures(True)
    for row in given["steering"]["sets"]["polite words"]["rows"]:
        row["drift"] = None
    assert claims(given)["steering"]["verdict"] == "open"


def test_the_word_list_counts_words_and_says_what_it_is() -> None:
    words = insults()
    assert 50 <= len(words) <= 70
    assert list(words) == sorted(set(words))
    assert not any("#" in word for word in words)
    has = has_word_of(words)
    assert has("You IDIOT!") == 1
    assert has("a class of assets, with shells") == 0


def test_what_was_shown_is_not_said_to_be_unshown(tmp_path: Path) -> None:
    data = pages.read_data(REPORT.name)
    steered = [one["claims"]["steering"] for one in data["digest"]["models"].values() if "steering" in one["claims"]]
    assert steered
    for claim in steered:
        claim["verdict"] = "replicates"
    [path] = REPORT.page(data, tmp_path)
    assert "could not be shown" not in path.read_text(encoding="utf-8")
