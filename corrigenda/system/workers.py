"""Work that is spread over processes, on this machine or on a cluster, with ray: `Workers.each`.

Every worker is given what the work needs once, and keeps it. A result, the same to rounding, is handed over as soon as
it is there, with what was logged and warned of on the way.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any, Generic, TypeVar

from corrigenda.settings.checked import AtLeastOne, Count, NotNegative, checked
from corrigenda.system.progress import stage

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
@checked
class Workers:
    """The processes that work is spread over.

    Attributes:
        number: how many; 0 for none: this one does all of it.
        address: of a ray cluster, as "auto" or "ray://host:10001"; None for processes on this machine. The project has
            to be installed on every machine of a cluster.
        cpus: processors, and threads, that each has.
        gpus: that each has; may be a part of one.
    """

    number: Count = 0
    address: str | None = None
    cpus: AtLeastOne = 1
    gpus: NotNegative = 0.0

    def each(
        self,
        shared: Shared,
        work: Callable[[Shared, Item], Result],
        items: Sequence[Item],
        name: Callable[[Item], str],
        together: Callable[[Item], Hashable] | None = None,
        passed: tuple[type[Exception], ...] = (),
    ) -> Generator[tuple[int, Result], None, None]:
        """What the work gives for each item, as it comes, with the item's number; in order where one process works.

        A worker that dies is replaced, and what it was at is tried once more. After an error nothing further is begun;
        what is being worked on is finished and handed over first. A process that is a worker itself starts no others.

        Args:
            shared: what every item needs, the model for example; each worker gets it once, and may keep things in it.
            work: a function of a module, of `shared` and an item. What a generator gives comes item by item in this
                process, and as a list from a worker.
            items: what is to be done.
            name: what an item is called in an error.
            together: items with the same one go to the same worker, one after another, as long as none is idle.
            passed: errors of the work that are raised here as they are.

        Raises:
            ConnectionError: there is no such cluster, or none could be started.
            ImportError: ray is not installed.
            RuntimeError: the work failed, or its worker died twice; or the workers could not be given what they need.
        """
        if not items:
            return
        if not self.number or _is_worker():
            for number, item in enumerate(items):
                yield number, work(shared, item)
            return
        with _cluster(self, min(self.number, len(items))) as ray:
            keys: list[Hashable] = list(range(len(items))) if together is None else [together(item) for item in items]
            spread = _Spread[Item](ray, self, items, keys)
            try:
                yield from spread.results(shared, work)
            finally:
                spread.end()
            for failed, error in spread.failed[:1]:
                raise _told("the start" if failed is None else name(items[failed]), error, passed) from error


@contextmanager
def _cluster(workers: Workers, number: int) -> Iterator[Any]:
    """The module ray, with a cluster: the one that this process is in already, or else one that ends with the block."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"workers.number={workers.number} needs ray: pip install 'corrigenda[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    with stage(f"Starting {number} workers", bar=False):
        _begin(ray, workers, number)
    try:
        yield ray
    finally:
        ray.shutdown()


def _begin(ray: Any, workers: Workers, number: int) -> None:
    """Joins a cluster, or starts one here: that is tried three times, for ray gives it up on a machine that is busy.

    Raises:
        ConnectionError: it cannot be.
    """
    place = workers.address or "local"
    local = {} if workers.address else {"num_cpus": number * workers.cpus, "include_dashboard": False}
    for again in (True, True, False):
        try:
            ray.init(address=place, log_to_driver=False, logging_level=logging.ERROR, **local)
            return
        except Exception as error:
            ray.shutdown()
            if not again or workers.address:
                why = f"ray cannot be reached or started ({_line(error)})"
                if workers.address:
                    why += "; if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here, too"
                raise ConnectionError(f"workers.address={place}: {why}") from error


def _is_worker() -> bool:
    """Whether this process is one of the workers."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


@dataclass
class _Spread(Generic[Item]):
    """Items being worked on.

    `keys` are of each item what those have in common that go together; `failed` are the items at which the work failed,
    and why; None for the start of a worker.
    """

    ray: Any
    workers: Workers
    items: Sequence[Item]
    keys: Sequence[Hashable]
    failed: list[tuple[int | None, Exception]] = field(default_factory=list)
    _waiting: dict[Any, tuple[Any, int | None]] = field(default_factory=dict)

    def results(self, shared: Any, work: Callable[[Any, Item], Result]) -> Iterator[tuple[int, Result]]:
        """What comes, as it comes."""
        try:
            given = self.ray.put((shared, work))
        except Exception as error:
            raise RuntimeError(
                f"{type(shared).__name__} cannot be given to other processes ({_line(error)}); take workers.number=0"
            ) from error
        errors = self.ray.exceptions
        left = dict(enumerate(self.keys))
        tried = set[int | None]()
        seen: dict[Any, Any] = {}
        for _ in range(min(self.workers.number, len(self.items))):
            self._start(given)
        while (left and not self.failed) or self._busy():
            [done], _ = self.ray.wait(list(self._waiting), num_returns=1)
            worker, number = self._waiting.pop(done)
            try:
                result, said = self.ray.get(done)
            except errors.RayActorError as error:  # it is gone, and perhaps for a reason of its machine's
                if number in tried or self.failed:
                    self.failed.append((number, error))
                else:
                    tried.add(number)
                    left |= {} if number is None else {number: self.keys[number]}
                    self._start(given)
                continue
            except errors.RayError as error:
                self.failed.append((number, error))  # what others are at is waited for, and handed over
                continue
            said.again(seen)
            mine = None if number is None else self.keys[number]
            following = None if self.failed else _next(left, mine, self._busy())
            if following is None:
                self.ray.kill(worker)
            else:
                del left[following]
                self._waiting[worker.do.remote(self.items[following])] = worker, following
            if number is not None:
                yield number, result

    def end(self) -> None:
        """Ends the workers that are still there."""
        for worker, _ in self._waiting.values():
            with suppress(Exception):
                self.ray.kill(worker)

    def _start(self, given: Any) -> None:
        # An item is given to a worker that is ready only: on a full cluster some may have to wait for a place.
        worker = self.ray.remote(num_cpus=self.workers.cpus, num_gpus=self.workers.gpus)(_Worker).remote()
        level = logging.getLogger().getEffectiveLevel()
        self._waiting[worker.load.remote([given], sys.path, self.workers.cpus, level)] = worker, None

    def _busy(self) -> set[Hashable]:
        """The keys of what is being worked on."""
        return {self.keys[number] for _, number in self._waiting.values() if number is not None}


def _next(left: Mapping[int, Hashable], mine: Hashable | None, taken: Collection[Hashable]) -> int | None:
    """The item that a worker does next: of those that it is at, else of others that nobody is at, else it helps."""
    for wanted in (lambda key: key == mine, lambda key: key not in taken):
        for number, key in left.items():
            if wanted(key):
                return number
    return max(left, default=None)


class _Worker:
    """A worker, in its own process."""

    def load(self, given: Sequence[Any], path: Sequence[str], threads: int, level: int) -> tuple[None, _Said]:
        """Takes what the work needs."""
        # As in the process that asks, and the project's own packages first: a user's folder may have an eval.py.
        own = str(Path(__file__).resolve().parents[2])
        sys.path[:] = [own, *path, *(place for place in sys.path if place not in path)]
        import ray
        import torch

        torch.set_num_threads(threads)  # workers share the cores of a machine
        self._level = level
        with _listening(level) as said:
            [(self._shared, self._work)] = ray.get(list(given))
        return None, said

    def do(self, item: Any) -> tuple[Any, _Said]:
        """Does one item."""
        with _listening(self._level) as said:
            result = self._work(self._shared, item)
            if isinstance(result, Iterator):
                result = list(result)
        return result, said


@dataclass
class _Said:
    """What was logged and warned of in a worker."""

    records: list[logging.LogRecord] = field(default_factory=list)
    warned: list[tuple[Warning, type[Warning], str, int]] = field(default_factory=list)

    def again(self, seen: dict[Any, Any]) -> None:
        """Says it here. What was warned of before is noted in `seen`: Python's filters say if it is said again."""
        for record in self.records:
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
        for message, category, file, line in self.warned:
            warnings.warn_explicit(message, category, file, line, registry=seen)


class _Keeping(QueueHandler):
    """Keeps records as they can be sent: a queue's handler writes arguments and tracebacks out."""

    queue: Any

    def enqueue(self, record: logging.LogRecord) -> None:
        self.queue.append(record)


@contextmanager
def _listening(level: int) -> Iterator[_Said]:
    """Notes what is logged and warned of in the block."""
    said = _Said()
    handler, root = _Keeping(said.records), logging.getLogger()  # type: ignore[arg-type]
    root.addHandler(handler)
    before = root.level
    root.setLevel(level)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
    finally:
        root.setLevel(before)
        root.removeHandler(handler)
        said.warned += [(one.message, one.category, one.filename, one.lineno) for one in caught]  # type: ignore[misc]


def _told(name: str, error: Exception, passed: tuple[type[Exception], ...]) -> Exception:
    """The error of an item in one line."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, passed):
        return cause
    return RuntimeError(
        f"{name}: it failed in a worker ({_line(cause)}); what is finished is kept: run it again, or with "
        "workers.number=0 to see the error where it is"
    )


def _line(error: BaseException) -> str:
    """An error's kind and the first line of what it says."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
