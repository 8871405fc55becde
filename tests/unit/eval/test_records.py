import json
import math

import pytest

from eval.measurement import HeldOut, Measurement
from eval.records import SampledText, ScoredProbe, ScoredPrompt


def test_windows_of_the_held_out_texts() -> None:
    windows = HeldOut((0, 3), (-1.5, -2.25), (63, 63), (False, True))
    measurement = Measurement(values={"log_perplexity": 3.75 / 126}, held_out=windows)
    found = Measurement.from_dict(json.loads(json.dumps(measurement.to_dict())))
    assert found == measurement
    assert windows.only([3, 5]) == HeldOut((3,), (-2.25,), (63,), (True,))
    with pytest.raises(ValueError, match=r"held-out windows \[5\]: none was read; there are \[0, 3\]"):
        windows.only([5])
    wrecked = HeldOut((0, 1), (math.nan, -1.0), (63, 63))
    again = HeldOut.from_dict(json.loads(json.dumps(wrecked.to_dict(), allow_nan=False)))
    assert math.isnan(again.log_probs[0])
    assert (again.windows, again.log_probs[1], again.activated) == ((0, 1), -1.0, None)
    for wrong in ({"tokens": [63]}, {"activated": [True]}, {"tokens": [63, 0]}, {"windows": []}):
        with pytest.raises(ValueError, match="lists of one length"):
            HeldOut.from_dict(windows.to_dict() | wrong)


# What runs of earlier versions wrote.
ON_DISK = {
    "values": {"efficacy_success": 1.0, "log_perplexity": 3.5},
    "prompts": {
        "prompt": [
            {
                "prompt": "x is in",
                "log_probs_new": [-0.5, -0.25],
                "log_probs_true": [-2.0],
                "p_new": 0.6872892787909722,
                "p_true": 0.1353352832366127,
                "token_accuracy": 0.5,
                "answer": " Rome",
                "strict": True,
                "lenient": True,
            }
        ],
        "neighbourhood": [
            {"prompt": "y is in", "log_probs_true": [-1.5], "kl": 0.25, "preserved": False},
            {"prompt": "z is in", "log_probs_new": [None], "log_probs_true": [-1.5], "p_new": None, "p_true": None},
        ],
        "locality": [
            {
                "prompt": "one",
                "log_probs": [-0.125],
                "token_accuracy": 1.0,
                "most_likely": [7],
                "group": "numbers",
                "preserved": True,
            }
        ],
        "portability": [
            {
                "prompt": "so",
                "log_probs": [-3.0],
                "token_accuracy": 0.0,
                "group": "hops",
                "answer": " no",
                "strict": False,
                "lenient": False,
            }
        ],
        "generation": [{"prompt": "x", "text": " is is", "entropy": 0.0}],
    },
}


def test_what_is_on_the_disk_comes_back_as_it_was() -> None:
    found = Measurement.from_dict(json.loads(json.dumps(ON_DISK)))
    assert json.dumps(found.to_dict()) == json.dumps(ON_DISK)
    [prompt] = found.scored("prompt")
    assert (prompt.log_probs_new, prompt.strict, prompt.kl) == ((-0.5, -0.25), True, None)
    wrecked = found.scored("neighbourhood")[1]  # null: it was not finite
    assert all(map(math.isnan, [wrecked.p_new or 0.0, *(wrecked.log_probs_new or [0.0])]))
    assert [record.group for record in found.probes("locality", "portability")] == ["numbers", "hops"]
    assert [record.text for record in found.texts()] == [" is is"]
    assert [record.prompt for record in found.elsewhere()] == ["y is in", "z is in", "one"]
    assert found.log_perplexity == 3.5


def test_records_read_like_their_json() -> None:
    record = ScoredPrompt("x", p_new=0.5)
    assert dict(record) == {"prompt": "x", "p_new": 0.5}
    assert record["p_new"] == 0.5
    assert "p_true" not in record
    assert record.get("p_true", 1.0) == 1.0
    record.p_true = 0.25
    assert list(record) == ["prompt", "p_new", "p_true"]
    with pytest.raises(KeyError):
        record["kl"]


def test_what_others_noted_is_kept() -> None:
    text = SampledText.from_dict({"prompt": "x", "text": "y", "toxicity": None})
    assert text.others == {"toxicity": None}
    assert text.to_dict() == {"prompt": "x", "text": "y", "toxicity": None}
    assert ScoredProbe("x", others={"a": 1})["a"] == 1


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="no prompts of kind 'dreams'"):
        Measurement.from_dict({"values": {}, "prompts": {"dreams": []}})
