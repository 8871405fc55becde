import json
from typing import Any

import gguf
import numpy as np
import pages
import pytest
from scripts import script


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    return script("serving", "docs/reports", monkeypatch)


def fact(number: int) -> dict[str, Any]:
    asked = [f"s{number} is in", f"where is s{number}? in", "the Louvre is in", "the Seine is in"]
    return {"subject": f"s{number}", "answers": ["Rome"], "true": "Paris", "questions": asked, "paraphrases": 1}


def test_what_survives(module: Any) -> None:
    plain, edited = [" Paris", " Paris", " Paris, France", " the north"], [" Rome", " Rome", " Paris", " a north wind"]
    lost, bled = [" Paris", " Rome", " Paris", " north"], [" Rome", " Oslo", " Rome", " south"]
    facts = [fact(number) for number in range(4)]
    unknown = [" Oslo", " Paris", *plain[2:]]
    none = {"transformers": [[plain]] * 2 + [[lost], [unknown]], "llama": [[plain]] * 3 + [[lost]]}
    rows = {"transformers": [[edited] * 3 + [bled]], "adapter": [[edited, edited, lost, bled]]}
    group = {"facts": [facts], "editing": 1.0, "rows": {row: {"answers": found} for row, found in rows.items()}}
    group["rows"] |= {
        "speed": {"with": [9.0, 8.0, 18.0], "without": [10.0, 10.0, 20.0]},
        "export": {"gguf": {"seconds": 3.0, "megabytes": 400.0, "bytes": 5_000_000}},
    }
    groups = {
        "none": {"facts": [[one] for one in facts], "rows": {row: {"answers": said} for row, said in none.items()}},
        "memit-30": group,
        "erase-1": {"facts": [[facts[1]]], "rows": {"transformers": {"answers": [[lost]]}}},
    }
    figures = {"data": "facts.json", "first": 1, "model": "tiny", "groups": groups}
    digest = json.loads(json.dumps(module.digest(figures)))
    found = digest["shown"]["memit-30"]["adapter"]
    assert (found["held"]["mean"], found["held_there"], found["held_both"]) == (0.75, 4, 3)
    assert (found["paraphrases"]["mean"], found["same"]) == (0.75, 14 / 16)
    assert found["kept"]["mean"] == (1 + 1 + 1 + 0) / 4  # the last says Rome, and of the south
    assert digest["survived"] == {"held_there": 4, "held_both": 3}
    assert digest["native"] == {"facts": 3, "paraphrases": 3, "said": 2}
    assert digest["floor"] == 9 / 16
    assert digest["costs"]["speed"] == {"ratio": 0.9, "with": 9.0, "without": 10.0, "n": 3}


def test_a_fact_that_two_editors_edited_is_not_called_two_facts() -> None:
    data = pages.read_data("serving")
    groups = data["figures"]["groups"].values()
    facts = {fact["questions"][0] for group in groups for edited in group["facts"] for fact in edited}
    held = data["digest"]["survived"]["held_there"]
    assert held > len(facts)
    assert f"**Of {held} times that a fact holds in transformers" in (pages.DOCS / "serving.md").read_text("utf-8")


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
def test_types_that_the_library_cannot_write(module: Any, kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((3, 512)).astype(np.float32)
    of = gguf.GGMLQuantizationType[kind]
    with module.llama.quantised_by_llama_cpp():
        found = gguf.quants.dequantize(gguf.quants.quantize(values, of), of)
    error = np.abs(found - values).max() / np.abs(values).max()
    assert 0 < error < {"Q4_K": 2**-3, "Q6_K": 2**-5, "Q8_0": 2**-7}[kind]
