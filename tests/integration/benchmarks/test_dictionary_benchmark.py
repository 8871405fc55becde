import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from scripts import script

from corrigenda.dictionaries import dictionary


@pytest.fixture
def benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    tiny.build("llama", scale=8.0).save_pretrained(tmp_path / "model")
    asked = ["--model", str(tmp_path / "model"), "--layer", "1", "--tokens", "100", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["dictionary.py", *asked])
    module = script("dictionary", "benchmarks", monkeypatch)
    monkeypatch.setattr(module, "K", 4)
    return module


def test_it_runs_to_its_end(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["benchmark"], result["tokens"], result["k"]) == ("dictionary", 100, 4)
    for kind in ("autoencoder", "transcoder"):
        found = result[kind]
        assert found["ratio"] == pytest.approx(found["plain_seconds"] / found["ours_seconds"])
        assert found["in_ffns"] == pytest.approx(found["ours_seconds"] / found["ffn_seconds"])
        assert found["largest_difference"] < 1e-5
        assert found["rows_of_other_features"] == 0


def test_another_forward_is_told(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dictionary, "largest", lambda scores, k: scores.topk(k + 1))
    with pytest.raises(SystemExit, match="the two ways differ"):
        benchmark.main()
