import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from sequences import Nudge, plain
from sequential_parts import SMALL

from corrigenda.system.files import read_checked, write_tensors
from eval.protocols import pre_edit
from eval.protocols.pre_edit import PreEditMeasurement, ReducedEvaluation, shared_folder


def test_it_comes_back_from_the_disk_as_it_was(tmp_path: Path) -> None:
    lm, some = tiny.build("llama"), plain(5)
    fresh = PreEditMeasurement(lm, some, SMALL, 2, tmp_path)
    assert fresh.complete(5, lambda: False)
    again = PreEditMeasurement(lm, some, SMALL, 2, tmp_path)
    with Nudge().edit(lm, some[:1]).applied(lm):  # it is not measured again, and would not be on the edited model
        for number in fresh.chunks:
            for old, new in zip(fresh.chunk(number), again.chunk(number), strict=True):
                assert (old.values, old.continuations) == (new.values, new.continuations)
                assert all(len(tokens) == SMALL.preservation_tokens for tokens in new.continuations.values())
                assert json.dumps(old.to_dict()) == json.dumps(new.to_dict())
                assert old.distributions.keys() == new.distributions.keys() == new.continuations.keys()
                assert all(torch.equal(row, new.distributions[prompt]) for prompt, row in old.distributions.items())


def test_one_of_an_earlier_version_is_measured_anew(tmp_path: Path) -> None:
    lm, some = tiny.build("llama"), plain(2)
    fresh = PreEditMeasurement(lm, some, SMALL, 2, tmp_path).chunk(0)
    [path] = tmp_path.iterdir()
    tensors, metadata = read_checked(path)
    write_tensors(path, tensors, metadata)
    with pytest.warns(UserWarning, match="it is measured again"):
        again = PreEditMeasurement(lm, some, SMALL, 2, tmp_path).chunk(0)
    assert [m.continuations for m in again] == [m.continuations for m in fresh]
    read_checked(path)


def test_some_of_the_facts_are_found_where_more_were_measured(tmp_path: Path) -> None:
    lm, some = tiny.build("llama"), plain(5)
    fresh = PreEditMeasurement(lm, some, SMALL, 2, tmp_path)
    assert fresh.complete(5, lambda: False)
    assert not PreEditMeasurement(lm, some[:4], SMALL, 2, tmp_path).missing(4)
    assert PreEditMeasurement(lm, some[1:], SMALL, 2, tmp_path).missing(4) == [0, 1]
    assert PreEditMeasurement(lm, some, SMALL, 3, tmp_path).missing(5) == [0, 1]
    less = ReducedEvaluation(frozenset({1}), replace(SMALL, generate=False))
    assert PreEditMeasurement(lm, some, SMALL, 2, tmp_path, less).missing(5) == [0]
    assert PreEditMeasurement(tiny.build("llama", seed=1), some, SMALL, 2, tmp_path).missing(5) == [0, 1, 2]
    for after in ({"strict": True}, {"perplexity_sample": 3}, {"harness_tasks": ("arc",), "harness_limit": 2}):
        assert not PreEditMeasurement(lm, some, replace(SMALL, **after), 2, tmp_path).missing(5)  # type: ignore[arg-type]
    assert PreEditMeasurement(lm, some, replace(SMALL, seed=1), 2, tmp_path).missing(5) == [0, 1, 2]
    lm.tokenizer.chat_template = "{{ messages[0].content }}"  # by which the held-out dialogues are written
    assert PreEditMeasurement(lm, some, SMALL, 2, tmp_path).missing(5) == [0, 1, 2]


def test_the_folder_that_all_runs_share_forgets_what_was_not_used_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    monkeypatch.setattr(pre_edit, "MOST_BYTES", 2500)
    folder = shared_folder()
    assert folder == tmp_path / "before"
    folder.mkdir()
    now = time.time()
    for days in range(4):
        (folder / f"{days}").write_bytes(bytes(1000))
        os.utime(folder / f"{days}", (now, now - 86400 * days - 60))
    shared_folder()
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]
    monkeypatch.setattr(pre_edit, "MOST_BYTES", 0)
    shared_folder()
    assert [path.name for path in folder.iterdir()] == ["0"]


def test_what_is_used_counts_as_new(tmp_path: Path) -> None:
    lm, some = tiny.build("llama"), plain(1)
    PreEditMeasurement(lm, some, SMALL, 2, tmp_path).chunk(0)
    [path] = tmp_path.iterdir()
    os.utime(path, (0, 0))
    PreEditMeasurement(lm, some, SMALL, 2, tmp_path).chunk(0)
    assert path.stat().st_mtime > time.time() - 3600
