"""`Store`: all runs under one folder, at any depth, told apart by their ids. It keeps no index that could go stale.

Several processes may write at once. Who begins a run does so under the store's lock, and holds the lock of the run's
folder as long as it lives; so a folder that is unfinished and not locked was left by a process that was killed.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from corrigenda.runs.folder import RunFolder
from corrigenda.runs.locks import is_locked, locked
from corrigenda.runs.records import count_records, records_in
from corrigenda.system.plain_data import read_json, read_yaml

State = Literal["finished", "running", "unfinished", "damaged"]

BEGINNING_TAKES = 60.0
"""Seconds that one waits for another process to begin its run (it reads the store and writes a few small files)."""

_MARKS = {"config.yaml", "identity.json", "summary.json", "cases.jsonl"}
_GROUPS = ("choices", "model", "editor", "data", "eval", "job")
_PICTURES = (".png", ".svg", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class StoredRun:
    """A run as it lies in the store.

    Attributes:
        path: its folder.
        state: "finished"; "running", another process is writing it; "unfinished", it was killed or failed, and can go
            on; "damaged", something there cannot be read.
        problem: what is damaged.
        config: the resolved configuration; empty if it cannot be read.
        identity: its id and the fingerprints of what it works on; empty for a run that was killed before it knew.
        summary: the figures; empty if it is not finished.
        done: the number of finished cases.
    """

    path: Path
    state: State
    problem: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    done: int = 0

    @property
    def id(self) -> str:
        """The run's id; empty where it is not known."""
        return str(self.identity.get("id", ""))

    @property
    def job(self) -> str:
        """What the run did: its job's name."""
        return _job(self.config)

    @property
    def when(self) -> datetime:
        """When the run was begun, in local time."""
        try:
            versions = read_json(self.path / "versions.json")
            begun = datetime.fromisoformat(versions["begun"])
            return begun if begun.tzinfo is None else begun.astimezone().replace(tzinfo=None)
        except (OSError, OverflowError, ValueError, KeyError, TypeError):
            marks = [self.path / name for name in sorted(_MARKS) if (self.path / name).is_file()]
            return datetime.fromtimestamp(min(path.stat().st_mtime for path in marks or [self.path]))

    @property
    def pictures(self) -> list[Path]:
        """The pictures in the run's folder."""
        return sorted(path for path in self.path.rglob("*") if path.suffix.lower() in _PICTURES)

    def cases(self, of: str = "cases") -> list[dict[str, Any]]:
        """The records of the finished cases; nothing is changed in the folder. Raises ValueError: they are damaged."""
        return list(records_in(self.path, of))


class Store:
    """The runs under a folder, which need not exist yet."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def runs(self) -> list[StoredRun]:
        """All runs, oldest first. One that cannot be read is there too, as damaged, with the reason."""
        return _read(self._folders())

    def find(self, run_id: str) -> StoredRun | None:
        """The run with an id: the newest finished one, else one in progress, else the one to go on with."""
        order = ("finished", "running", "unfinished")
        found = [run for run in reversed(self._of(run_id)) if run.state in order]
        return min(found, key=lambda run: (order.index(run.state), -run.done), default=None)

    @contextmanager
    def take(
        self, identity: Mapping[str, str], begin: Callable[[], RunFolder], force: bool = False
    ) -> Iterator[RunFolder | StoredRun]:
        """Takes the run of an identity in hand, so that no other process does.

        Yields the folder to work in, new (`begin` makes it) or left by a killed process, which stays locked until the
        context is left; or the stored run where there is nothing to do, because it is finished or another process is at
        it. With `force` a new one is begun even if there is one; but one that was begun so and was cut short goes on.
        """
        with locked(self.root / ".lock", BEGINNING_TAKES):
            found = self.find(identity["id"])
            if force and not (found is not None and found.state == "running"):
                found = self._forced(identity["id"])
            if found is not None and found.state != "unfinished":
                folder, holding = None, None
            else:
                folder = begin() if found is None else RunFolder(found.path)
                holding = folder.held()
                holding.__enter__()
                try:
                    folder.identify(**identity)
                except BaseException:
                    holding.__exit__(None, None, None)
                    raise
        if folder is None or holding is None:
            assert found is not None
            yield found
            return
        try:
            yield folder
        finally:
            holding.__exit__(None, None, None)

    def _forced(self, run_id: str) -> StoredRun | None:
        """The run that was begun with ``force=true`` and was cut short; of several, the one that came furthest."""
        found = [run for run in self._of(run_id) if run.state == "unfinished"]
        return max((run for run in found if run.config.get("force")), key=lambda run: run.done, default=None)

    def _of(self, run_id: str) -> list[StoredRun]:
        """The runs with an id, oldest first. Of the others no more is read: who begins a run holds the store."""
        return _read(path for path in self._folders() if _id_in(path) == run_id)

    def _folders(self) -> Iterator[Path]:
        for place, folders, files in os.walk(self.root):
            if _MARKS & set(files):
                folders.clear()
                yield Path(place)
            folders[:] = sorted(name for name in folders if not name.startswith("."))


def _read(folders: Iterable[Path]) -> list[StoredRun]:
    """The runs in some folders, oldest first."""
    return sorted(map(read_run, folders), key=lambda run: (run.when, str(run.path)))


def _id_in(path: Path) -> str:
    """The id of the run in a folder; empty where it is not known, or cannot be read."""
    try:
        return str(_mapping(path / "identity.json", read_json).get("id", ""))
    except (ValueError, OSError):
        return ""


def read_run(path: Path) -> StoredRun:
    """A run's folder, read without changing it; what cannot be read makes it a damaged one."""
    from corrigenda.runs.forms import problem_of_config, problem_of_summary

    found: dict[str, Any] = {}
    try:
        config = _mapping(path / "config.yaml", read_yaml)
        odd = [group for group in _GROUPS if not isinstance(config.get(group) or {}, dict)]
        found["config"] = {name: value for name, value in config.items() if name not in odd}
        if odd:
            raise ValueError(f"config.yaml: {', '.join(odd)} should hold named values")
        if problem := problem_of_config(config):
            found["config"] = {}
            raise ValueError(problem)
        found["identity"] = _mapping(path / "identity.json", read_json)
        summary = _mapping(path / "summary.json", read_json)
        if summary and (problem := problem_of_summary(summary, _job(config) == "edit")):
            raise ValueError(problem)
        found["summary"] = summary
        found["done"] = count_records(path)
        if summary:
            if _job(config) == "edit":
                _check(path, found)
            return StoredRun(path, "finished", **found)
    except (ValueError, OSError) as error:
        return StoredRun(path, "damaged", str(error), **found)
    return StoredRun(path, "running" if is_locked(path / ".lock") else "unfinished", **found)


def _job(config: Mapping[str, Any]) -> str:
    job = config.get("job")
    return str(job.get("name", "edit")) if isinstance(job, Mapping) else "edit"


def _mapping(path: Path, read: Callable[[Path], Any]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = read(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path.name} cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds {type(value).__name__} in the place of named values")
    return value


def _check(path: Path, found: Mapping[str, Any]) -> None:
    """Whether a finished run has what its summary says."""
    summary = found["summary"]
    if not found["config"]:
        raise ValueError("config.yaml is missing")
    done = found.get("done", 0)
    if done != summary["n_facts"]:
        raise ValueError(f"summary.json is of {summary['n_facts']} facts, but there are records of {done}")
    if summary["mode"] == "sequential" and not (path / "retention.jsonl").is_file():
        raise ValueError("the records of the end of the sequence (retention) are missing")
