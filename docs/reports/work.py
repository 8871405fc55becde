"""Work folders: what is found is kept there, with how it was made, and is not found twice."""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from options import go_on
from pages import Made, made, making, read_json

from corrigenda import Fact, LanguageModel, load
from corrigenda.runs.folder import RunFolder
from corrigenda.system.files import write_json


@cache
def loaded(name: str, dtype: str = "float32") -> LanguageModel:
    """A model; what was loaded for another row is not loaded again."""
    return load(name, dtype=dtype)


def once(path: Path, find: Callable[[], Any], uses: Iterable[str] = (), deadline: float | None = None) -> Any:
    """What is found, from a file where it is there, else found and kept there, with a note; or `NotFinishedError`."""
    if not path.is_file():
        go_on(deadline)
        print(path.parent, file=sys.stderr)
        with making(path.parent, uses):
            write_json(path, find())
    return read_json(path)


def records(
    folder: Path,
    facts: Iterable[Fact],
    find: Callable[[Fact], dict[str, Any]],
    uses: Iterable[str] = (),
    deadline: float | None = None,
) -> Generator[dict[str, Any], None, None]:
    """What is found of each fact, from a folder of records, else found and kept there; or `NotFinishedError`."""
    kept_in = RunFolder(folder)
    there = {record["id"]: record for record in kept_in.cases()}
    with ExitStack() as noted:
        begun = False
        for fact in facts:
            if fact.id not in there:
                go_on(deadline)
                if not begun:  # nothing is noted where all are there
                    begun = True
                    noted.enter_context(making(folder, uses))
                there[fact.id] = find(fact)
                kept_in.append(there[fact.id])
            yield there[fact.id]


def first_records(
    folder: Path,
    facts: Iterable[Fact],
    find: Callable[[Fact], dict[str, Any]],
    n: int,
    key: str,
    uses: Iterable[str] = (),
    deadline: float | None = None,
) -> list[dict[str, Any]]:
    """The first n of `records` that have something under a key."""
    with closing(records(folder, facts, find, uses, deadline)) as found:
        return [*islice((record for record in found if record.get(key)), n)]


def finished_rows(work: Path) -> Iterator[tuple[str, str, Any, Made]]:
    """Of the finished rows in a work folder, GROUP/ROW/values.json: group, row, values, and what `making` noted."""
    for path in sorted(work.glob("*/*/values.json")):
        group, row = path.parts[-3:-1]
        yield group, row, read_json(path), made(path.parent)
