import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from clusters import two_workers

from corrigenda.system.workers import Workers

ONE, TWO = Workers(1), Workers(2)


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with two_workers(tmp_path_factory.mktemp("cache"), __file__):
        yield


@dataclass
class Shared:
    """What a worker is given, and keeps."""

    folder: Path
    loaded_in: int = 0
    asked: list[str] = field(default_factory=list)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.loaded_in = os.getpid()
        with (self.folder / "loaded").open("a") as file:
            file.write(f"{os.getpid()}\n")


def name(item: str) -> str:
    return f"item {item}"


def note(shared: Shared, item: str) -> tuple[str, int, int]:
    """The item, the process, and how many it has been asked for there."""
    shared.asked.append(item)
    logging.getLogger("a.worker").warning("at %s", item)
    warnings.warn(f"{item} is rare", UserWarning, stacklevel=1)
    return item.upper(), os.getpid(), len(shared.asked)


def test_each_item_once_and_each_worker_loads_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    items = [f"{letter}{number}" for letter in "abcd" for number in range(3)]
    with pytest.warns(UserWarning, match="is rare") as warned:
        found = dict(TWO.each(Shared(tmp_path), note, items, name, together=lambda item: item[0]))
    assert [found[number][0] for number in range(12)] == [item.upper() for item in items]
    processes = Counter(process for _, process, _ in found.values())
    assert os.getpid() not in processes
    loaded = (tmp_path / "loaded").read_text().split()
    assert len(loaded) == len(set(loaded))  # each once
    assert set(map(str, processes)) <= set(loaded)  # one may come too late for an item
    for process, n in processes.items():  # each goes on with what it keeps
        assert sorted(place for _, one, place in found.values() if one == process) == list(range(1, n + 1))
    assert sorted(record.getMessage() for record in caplog.records) == [f"at {item}" for item in items]
    assert len({str(one.message) for one in warned}) == 12


def dies(shared: tuple[Path, dict[str, int]], item: str) -> str:
    """At some items the process ends, the first so many times."""
    folder, times = shared
    file = folder / item
    died = len(file.read_text()) if file.exists() else 0
    if died < times.get(item, 0):
        file.write_text("x" * (died + 1))
        os._exit(1)
    return item


def test_a_worker_that_dies_is_replaced_once(tmp_path: Path) -> None:
    came: list[tuple[int, str]] = []
    with pytest.raises(
        RuntimeError, match=r"^item d: it failed in a worker \(ActorDiedError: [^\n]*; what is fin[^\n]*$"
    ):
        came.extend(ONE.each((tmp_path, {"b": 1, "d": 2}), dies, list("abcde"), name))
    assert (tmp_path / "b").read_text() == "x"
    # "b" was tried once more, and after the second end of "d" nothing further is begun.
    assert sorted(came)[:3] == [(0, "a"), (1, "b"), (2, "c")]
    assert not {"d"} & {item for _, item in came}


class CannotLoad:
    def __reduce__(self) -> tuple[object, ...]:
        return (open, ("/nowhere/at/all",))


def fails(shared: object, item: str) -> str:
    if item == "b":
        raise KeyError(item)
    return item


def test_errors_are_one_line() -> None:
    came: list[int] = []
    with pytest.raises(RuntimeError, match=r"^item b: it failed in a worker \(KeyError: 'b'\); "):
        came.extend(number for number, _ in ONE.each(None, fails, ["a", "b"], name))
    assert came == [0]
    with pytest.raises(RuntimeError, match=r"^the start: it failed in a worker \(\w+: .*No such file"):
        list(ONE.each(CannotLoad(), fails, ["a", "c"], name))
    with pytest.raises(RuntimeError, match=r"^generator cannot be given to other processes \(TypeError: .*number=0$"):
        list(ONE.each((one for one in "a"), fails, ["a"], name))


def pieces(shared: None, item: str) -> Iterator[int]:
    yield os.getpid()
    for _, one in Workers(2).each(None, process, ["a", "b"], name):
        yield one


def process(shared: None, item: str) -> int:
    return os.getpid()


def test_a_generator_comes_item_by_item_here_and_as_a_list_from_there() -> None:
    there: list[tuple[int, Any]] = list(ONE.each(None, pieces, ["x"], name))
    [(number, [own, *others])] = there
    assert number == 0
    assert others == [own, own]  # a worker starts no others
    assert own != os.getpid()
    here = Workers().each(None, pieces, ["x"], name)
    assert next(next(here)[1]) == os.getpid()
