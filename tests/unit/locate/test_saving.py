import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from malformed_parts import refused
from torch import Tensor

from corrigenda import Fact
from locate.saving import SavedResult


@dataclass(frozen=True)
class Part:
    words: tuple[str, ...]
    row: Tensor


@dataclass(frozen=True, eq=False)
class Whole(SavedResult, file="whole"):
    fact: Fact
    label: str | None
    missing: Tensor | None
    numbers: tuple[float, ...]
    counts: Mapping[tuple[int, int], int]
    by_name: Mapping[str, Tensor]
    parts: tuple[tuple[Part, ...], ...]


def whole() -> Whole:
    row = torch.arange(3.0)
    return Whole(
        Fact("Rome", "{} is in", "France", "Italy", paraphrases=("Where is {}?",)),
        label=None,
        missing=None,
        numbers=(0.1, math.nan, math.inf),
        counts={(3, 7): 2, (0, 1): 5},
        by_name={"a": row, "b": row},  # of one memory
        parts=((Part(("x", "y"), row + 1),), ()),
    )


def test_it_is_what_it_was(tmp_path: Path) -> None:
    was = whole()
    was.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole.json", "whole.safetensors"]
    now = Whole.load(tmp_path)
    assert (now.fact, now.label, now.missing, now.counts) == (was.fact, None, None, was.counts)
    assert now.numbers[0] == 0.1
    assert math.isnan(now.numbers[1])
    assert now.numbers[2] == math.inf
    assert {name: row.tolist() for name, row in now.by_name.items()} == {"a": [0, 1, 2], "b": [0, 1, 2]}
    [[part], none] = now.parts
    assert (part.words, part.row.tolist(), none) == (("x", "y"), [1, 2, 3], ())


def test_what_is_damaged_or_missing_is_named(tmp_path: Path) -> None:
    refused(FileNotFoundError, r"holds no whole: there is no whole\.json in it", Whole.load, tmp_path)
    whole().save(tmp_path)
    path = tmp_path / "whole.json"
    path.write_text(path.read_text().replace('"parts"', '"pieces"'))
    refused(ValueError, r"whole\.json is damaged: .*pieces", Whole.load, tmp_path)
    (tmp_path / "whole.safetensors").write_bytes(b"")
    refused(ValueError, "its SHA-256 is not the one", Whole.load, tmp_path)
