"""Locating many facts, one after another, in a run that can be cut short and gone on with."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from corrigenda import Fact, LanguageModel
from corrigenda.models.alone import one_thread
from corrigenda.runs.folder import RunFolder
from corrigenda.system.progress import track
from corrigenda.system.workers import Workers
from locate.locator import Locator, Result
from locate.question import UnknownFactError

logger = logging.getLogger(__name__)


R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Survey(Generic[R]):
    """What locators found of some facts.

    Attributes:
        results: for each locator's name, its results, in the order of the facts; of the facts that all could locate.
        unknown: the facts that the model does not know, which were passed over: their ids, and what it says.
        failed: the facts that could not be asked about, and why. Those that crashed by another error than a ValueError
            are among them, but are tried again when the run goes on.
        seconds: for each locator's name, the mean time of one fact.
    """

    results: Mapping[str, Sequence[R]]
    unknown: Mapping[str, str]
    failed: Mapping[str, str]
    seconds: Mapping[str, float]

    def summary(self) -> dict[str, Any]:
        """How many facts were located, and what became of the others."""
        return {
            "n_located": max((len(results) for results in self.results.values()), default=0),
            "n_unknown": len(self.unknown),
            "unknown": dict(self.unknown),
            "failed": dict(self.failed),
            "seconds_per_fact": dict(self.seconds),
        }


@one_thread
def survey(
    lm: LanguageModel,
    facts: Sequence[Fact],
    locators: Mapping[str, Locator[R]],
    load: Callable[[Path], R],
    folder: RunFolder,
    limit: int | None = None,
    answer: str | None = None,
    picture: str = ".png",
    workers: Workers | None = None,
) -> Survey[R]:
    """Runs locators over facts and keeps each result, with its picture, as soon as it is there.

    Args:
        lm: the model.
        facts: the facts, in order; or what else has an id and a statement, as the facts of a relation.
        locators: what to run on each fact, by name.
        load: reads a result that an earlier part of the run saved.
        folder: where results go (``results/``, ``pictures/``, a line each in ``cases.jsonl``), and where those of an
            earlier part of the run are found.
        limit: how many facts that the model knows to locate at most; None for all.
        answer: as the locators take it.
        picture: the kind of picture, by suffix.
        workers: processes that the facts are spread over; by default none. What is found is the same.

    Raises:
        ValueError: the settings of a locator do not fit the model.
        IndexError: the model has no such layer.
        RuntimeError: a worker failed. What was found is kept.
    """
    for locator in locators.values():
        locator.check(lm)
    surveyed = _Surveyed(facts, tuple(locators), load, folder, limit, picture)
    asked = [number for number in range(len(facts)) if surveyed.missing(number)]
    items = [(facts[number], surveyed.missing(number)) for number in asked]
    waiting: dict[int, Iterable[tuple[dict[str, Any], R | None]]] = {}
    if not surveyed.enough():
        each = (workers or Workers()).each(_Asked(lm, locators, answer), _ask, items, lambda item: f"fact {item[0].id}")
        with closing(each):
            for place, found in track(each, "Locating", total=len(items)):
                waiting[asked[place]] = found
                for number in sorted(filter(surveyed.counts, waiting)):
                    surveyed.keep(number, waiting.pop(number))
                if surveyed.enough():
                    break
    return surveyed.survey()


class _Surveyed(Generic[R]):
    """What is known of the facts so far, in the folder and here; arguments as for `survey`."""

    def __init__(
        self,
        facts: Sequence[Fact],
        names: Sequence[str],
        load: Callable[[Path], R],
        folder: RunFolder,
        limit: int | None,
        picture: str,
    ) -> None:
        self._facts, self._names, self._load, self._folder = facts, names, load, folder
        self._limit, self._picture = limit, picture
        self._done = {record["id"]: record for record in folder.cases()}
        self._results: dict[tuple[int, str], R] = {}
        self._missed = {number for number in range(len(facts)) if self._why(number) is not None}
        self._decided = self._located = 0
        self._count()

    def enough(self) -> bool:
        """Whether as many facts are located as were asked for, counted from the first."""
        return self._limit is not None and self._located >= self._limit

    def missing(self, number: int) -> list[str]:
        """The locators that a fact is to be asked about by; none where one has passed it over."""
        names = [name for name in self._names if self._record(number, name) is None]
        return [] if self._why(number) is not None else names

    def counts(self, number: int) -> bool:
        """Whether a fact is sure to be asked for: even if all before it that are not known yet are located."""
        return self._limit is None or number - sum(each < number for each in self._missed) < self._limit

    def keep(self, number: int, found: Iterable[tuple[dict[str, Any], R | None]]) -> None:
        """Keeps what a fact's locators found, each as soon as it is there."""
        for record, result in found:
            if result is not None:
                stem = self._stem(number, record["locator"])
                result.save(self._path(number, record["locator"]))
                result.plot(self._folder.path / "pictures" / f"{stem}{self._picture}")
                self._results[number, record["locator"]] = result
            if record["outcome"] != "crashed":
                self._folder.append(record)  # last: what has a line is done
            self._done[record["id"]] = record
        if self._why(number) is not None:
            self._missed.add(number)
        self._count()

    def survey(self) -> Survey[R]:
        """What was found of the facts that count."""
        results: dict[str, list[R]] = {name: [] for name in self._names}
        unknown: dict[str, str] = {}
        failed: dict[str, str] = {}
        for number, fact in enumerate(self._facts[: self._decided]):
            record = self._why(number)
            if record is not None:
                (unknown if record["outcome"] == "unknown" else failed)[fact.id] = record["why"]
                continue
            for name in self._names:
                known = self._results.get((number, name))
                results[name].append(self._load(self._path(number, name)) if known is None else known)
        times: dict[str, list[float]] = {name: [] for name in self._names}
        for record in self._done.values():
            if record["outcome"] == "located" and record["locator"] in times:
                times[record["locator"]].append(record["seconds"])
        return Survey(results, unknown, failed, {name: sum(each) / len(each) for name, each in times.items() if each})

    def _count(self) -> None:
        """Counts on over the facts of which all is known."""
        while self._decided < len(self._facts) and not self.enough() and not self.missing(self._decided):
            self._located += self._decided not in self._missed
            self._decided += 1

    def _record(self, number: int, name: str) -> dict[str, Any] | None:
        return self._done.get(f"{self._facts[number].id}:{name}")

    def _why(self, number: int) -> dict[str, Any] | None:
        """The record of the locator that passed a fact over."""
        records = (self._record(number, name) for name in self._names)
        return next((one for one in records if one is not None and one["outcome"] != "located"), None)

    def _stem(self, number: int, name: str) -> str:
        stem = self._folder.edit_path(number, self._facts[number].id).name
        return f"{stem}-{name}" if len(self._names) > 1 else stem

    def _path(self, number: int, name: str) -> Path:
        return self._folder.path / "results" / self._stem(number, name)


@dataclass(frozen=True)
class _Asked(Generic[R]):
    """What the facts of a survey need."""

    lm: LanguageModel
    locators: Mapping[str, Locator[R]]
    answer: str | None


def _ask(asked: _Asked[R], item: tuple[Fact, Sequence[str]]) -> Iterator[tuple[dict[str, Any], R | None]]:
    """The lines and results of one fact, by one locator after another, up to the first that passes it over."""
    fact, names = item
    for name in names:
        record, result = _located(asked.lm, fact, asked.locators[name], name, asked.answer)
        yield record, result
        if record["outcome"] != "located":
            return


def _located(
    lm: LanguageModel, fact: Fact, locator: Locator[R], name: str, answer: str | None
) -> tuple[dict[str, Any], R | None]:
    """The line of one fact and locator, and the result if there is one."""
    line: dict[str, Any] = {"id": f"{fact.id}:{name}", "locator": name, "statement": fact.statement}
    begin = time.perf_counter()
    try:
        result = locator.find(lm, fact, answer)
    except UnknownFactError as unknown:
        logger.info("passed over: %s", unknown)
        return {**line, "outcome": "unknown", "why": str(unknown)}, None
    except ValueError as error:  # one bad fact stops nothing; it is counted and named
        logger.warning("fact %s could not be located: %s", fact.id, error)
        return {**line, "outcome": "failed", "why": repr(error)}, None
    except Exception as crash:  # may have to do with the machine, not with the fact: another time it may go well
        logger.exception("locating fact %s crashed; it is tried again when the run goes on", fact.id)
        return {**line, "outcome": "crashed", "why": repr(crash)}, None
    seconds = time.perf_counter() - begin
    return {**line, "outcome": "located", "seconds": seconds, "summary": result.summary()}, result
