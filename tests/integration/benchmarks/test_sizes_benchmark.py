import json
import mmap
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors import safe_open
from scripts import script

from corrigenda import load

PARTS = ("statistics", "solve", "update", "score", "revert")


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("sizes", "benchmarks", monkeypatch)


def test_it_runs_to_its_end(
    sizes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    asked = ["--sizes", "tiny", "--steps", "2", "--tokens", "128", "--facts", "2", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["sizes.py", *asked, "--here", "--json", str(tmp_path / "sizes.json")])
    sizes.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((tmp_path / "sizes.json").read_text(encoding="utf-8")) == result
    assert "over 128 tokens only" in result["note"]
    tiny = result["sizes"]["tiny"]
    assert (tiny["dtype"], tiny["parameters"]) == ("bfloat16", 35104)
    edits = [f"{editor}: {part}" for editor in ("rome", "memit") for part in PARTS]
    assert sorted(tiny["parts"]) == sorted(["load", "fingerprint", "trace", *edits])
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]  # the model is gone


def test_the_model_is_in_shards_and_loads(sizes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "SHARD", 20_000)
    sizes.write_model(tmp_path, "tiny", torch.float32)
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 2
    for file in files[:-1]:
        with safe_open(file, framework="pt") as held:
            assert sum(held.get_tensor(name).nbytes for name in held.keys()) < 20_000 + 128 * 32 * 4  # noqa: SIM118
    lm = load(tmp_path)
    assert lm.memory(2).d_ffn == 48
    assert lm.tokenizer.unk_token_id not in lm.tokens(sizes.facts(1)[0].statement)


def test_a_part_inside_another_is_not_counted_in_it(sizes: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    meter = sizes.Meter()
    with meter.part("outer"):
        with meter.part("inner"):
            # Straight from the system: a process that has run other tests has freed memory that it would use again.
            with mmap.mmap(-1, 256 * 2**20) as held:
                for place in range(0, len(held), mmap.PAGESIZE):
                    held[place] = 1
            now += 2.0
        now += 0.5
    assert [meter.parts[part]["seconds"] for part in ("inner", "outer")] == [2.0, 0.5]
    if "memory_mb" in meter.parts["inner"]:
        assert meter.parts["inner"]["memory_mb"] >= meter.parts["outer"]["memory_mb"] + 150


def test_an_unknown_size(sizes: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sizes.py", "--sizes", "0.1,7"])
    with pytest.raises(SystemExit, match="no such size: 7; there are"):
        sizes.main()
