import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
import torch
from clusters import two_workers
from stand_ins import without_text

from corrigenda import Fact, LanguageModel
from editing import EditRefusedError, Memit, ValueSettings, Workers

FACTS = [
    Fact(subject, "the city of {} is", target, "Paris", id=subject)
    for subject, target in (("Thomas", "Rome"), ("Danielle", "Berlin"), ("Ben", "Rome"), ("the river", "London"))
]
MEMIT = Memit(
    layers=(1, 2),
    prefixes=("", "red green . "),
    value=ValueSettings(steps=4, lr=0.2, early_stop_loss=-1.0),
    batch_size=1,
    refuse_norm=1e9,
    most_per_coefficient=1.0,
    alike=1.0,
)
PARALLEL = dataclasses.replace(MEMIT, workers=Workers(2))
IN_ONE_WORKER = dataclasses.replace(MEMIT, workers=Workers(1))


@pytest.fixture(scope="module", autouse=True)
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A local ray of two workers for all tests: starting one takes seconds."""
    with two_workers(tmp_path_factory.mktemp("cache"), __file__):
        yield


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_text(monkeypatch, tmp_path)
    return tmp_path


def kept(cache: Path) -> int:
    return len(list(cache.glob("targets/*/*.safetensors")))


def test_the_same_as_in_one_process(cache: Path) -> None:
    lm = tiny.build("llama", scale=8.0)
    first = PARALLEL.edit(lm, FACTS[:2])
    assert kept(cache) == 2
    found = PARALLEL.extend(lm, first, FACTS[2:])
    assert kept(cache) == 4
    plain = dataclasses.replace(MEMIT, keep_targets=False)
    expected = plain.extend(lm, plain.edit(lm, FACTS[:2]), FACTS[2:])
    for layer in (1, 2):
        torch.testing.assert_close(found.delta(layer), expected.delta(layer), rtol=1e-5, atol=1e-5)
    for one, other in zip(found.origin.report, expected.origin.report, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)
    again = MEMIT.extend(lm, MEMIT.edit(lm, FACTS[:2]), FACTS[2:])
    assert all(one["solved"] == "kept" for one in again.origin.report)


def dies(settings: object, site: object, lm: LanguageModel, lacking: object) -> object:
    """What stands for `solve`: the worker that gets the last fact is gone."""
    from editing.locate_then_edit import solved

    if "the river" in lacking.ids:  # type: ignore[attr-defined]
        os._exit(1)
    return solved.solve(settings, site, lm, lacking)  # type: ignore[arg-type]


def refuses(settings: object, site: object, lm: LanguageModel, lacking: object) -> object:
    """The editor refuses."""
    raise EditRefusedError("it is too long")


def test_a_worker_that_dies_is_one_error_and_what_is_solved_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import editing.locate_then_edit.solved as module

    lm = tiny.build("llama", scale=8.0)
    with monkeypatch.context() as patch:
        patch.setattr(module, "solve", dies)
        with pytest.raises(RuntimeError, match=r"facts the river: it failed in a worker .*; what is finished is kept"):
            IN_ONE_WORKER.edit(lm, FACTS)
    assert kept(cache) == 3
    MEMIT.edit(lm, FACTS)
    assert kept(cache) == 4


def test_a_refusal_of_a_worker(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import editing.locate_then_edit.solved as module

    monkeypatch.setattr(module, "solve", refuses)
    with pytest.raises(EditRefusedError, match=r"^it is too long$"):
        IN_ONE_WORKER.edit(tiny.build("llama", scale=8.0), FACTS[:2])
