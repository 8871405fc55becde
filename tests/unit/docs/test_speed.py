import importlib
import json
from pathlib import Path
from typing import Any

import pytest

pages = importlib.import_module("pages")
speed = importlib.import_module("speed")

PART = {"plain": 0.5, "ours": 0.25}
OF_ONE = {
    **{"plain_seconds_per_fact": 2.0, "ours_seconds_per_fact": 3.0, "ratio": 0.667, "in_plain_forwards": 1.5},
    **{"parts": {"targets": PART, "held-out text": PART}, "together": PART, "products_seconds_per_fact": 0.125},
}
SCORING = {
    **{"model": "qwen2.5-coder-0.5b", "facts": 8, "data": "some.json", "threads": 2, "float32": OF_ONE},
    "bfloat16": {**OF_ONE, "in_float32_forwards": 0.6},
}


def test_one_benchmark_is_run_beside_what_the_data_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pages.read_data("speed")
    data["figures"].pop("evaluate", None)
    data["runs"].pop("evaluate", None)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "speed.json").write_text(json.dumps(data), encoding="utf-8")
    asked: list[str] = []

    def run(benchmark: Any, facts: str) -> dict[str, Any]:
        asked.append(benchmark.file)
        return SCORING

    monkeypatch.setattr(speed, "run", run)
    arguments = ["collect", "--only", "evaluate", "--store", str(tmp_path / "store"), "--docs", str(tmp_path)]
    speed.REPORT.main(arguments)
    assert asked == ["evaluate.py"]
    found = pages.read_data("speed", tmp_path)
    assert found["figures"].pop("evaluate") == SCORING
    assert found["figures"] == data["figures"]
    [page] = speed.REPORT.write(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "| scoring a fact by itself, float32 (0.5 billion parameters; median) | 2.00 | 3.00 | **0.7** |" in text
    assert "| scoring a fact, in times of the plain way | **1.5** | at most 1.3 |" in text
    assert "scoring a fact in bfloat16, in times of the plain way in float32 | **0.6**" in text
    assert "held-out text 0.50 and 0.25 (in bfloat16 0.50 and 0.25)." in " ".join(text.split())
    assert "missed: " in text
    with pytest.raises(SystemExit):  # all the others are to be run, too
        speed.REPORT.main([*arguments, "--anew"])
