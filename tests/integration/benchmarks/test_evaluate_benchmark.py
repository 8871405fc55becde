import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from scripts import script

FACTS = [
    {
        "id": subject,
        "subject": subject,
        "prompt": "{} is in the city of",
        "target_new": "Rome the red",
        "target_true": "Paris",
        "paraphrases": [f"the city of {subject} is"],
        "neighbourhood": ["the tower is in the city of", "the city of the south is"],
        "locality": [{"prompt": "the mother tongue of Danielle is", "answer": "French"}],
    }
    for subject in ("Thomas", "Big Ben", "north")
]


@pytest.fixture
def benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    tiny.build("llama", scale=8.0).save_pretrained(tmp_path / "model")
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    asked = ["--model", str(tmp_path / "model"), "--facts", str(tmp_path / "facts.json"), "--count", "2"]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *asked])
    module = script("evaluate", "benchmarks", monkeypatch)
    monkeypatch.setattr(module, "SIDE", 64)
    monkeypatch.setattr(module, "SETTINGS", replace(module.SETTINGS, perplexity_windows=6, perplexity_window=8))
    return module


def test_it_runs_to_its_end(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["benchmark"], result["facts"]) == ("evaluate", 2)
    for dtype in ("float32", "bfloat16"):
        found = result[dtype]
        assert found["ratio"] > 0
        assert found["together"]["in_plain_forwards"] > 0
        assert set(found["parts"]) == {"targets", "continuations", "held-out text"}
        assert found["products_seconds_per_fact"] > 0
    assert result["float32"]["largest_difference"] < 1e-4
    assert result["bfloat16"]["in_float32_forwards"] > 0


def test_other_log_probabilities_are_told(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = benchmark.Plain._targets
    monkeypatch.setattr(benchmark.Plain, "_targets", lambda self: [value - 0.01 for value in plain(self)])
    with pytest.raises(SystemExit, match=r"the two ways differ by 1\.0e-02"):
        benchmark.main()
