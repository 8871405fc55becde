"""Locating many facts, one after another, in a run that can be cut short and gone on with."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from corrigenda import Fact, LanguageModel
from corrigenda.progress import track
from corrigenda.runs.folder import RunFolder
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


def survey(
    lm: LanguageModel,
    facts: Sequence[Fact],
    locators: Mapping[str, Locator[R]],
    load: Callable[[Path], R],
    folder: RunFolder,
    limit: int | None = None,
    answer: str | None = None,
    picture: str = ".png",
) -> Survey[R]:
    """Runs locators over facts and keeps each result, with its picture, as soon as it is there.

    Args:
        lm: the model.
        facts: the facts, in order.
        locators: what to run on each fact, by name.
        load: reads a result that an earlier part of the run saved.
        folder: where results go (``results/``, ``pictures/``, a line each in ``cases.jsonl``), and where those of an
            earlier part of the run are found.
        limit: how many facts that the model knows to locate at most; None for all.
        answer: as the locators take it.
        picture: the kind of picture, by suffix.

    Raises:
        ValueError: the settings of a locator do not fit the model.
        IndexError: the model has no such layer.
    """
    for locator in locators.values():
        locator.check(lm)
    done = {record["id"]: record for record in folder.cases()}
    results: dict[str, list[R]] = {name: [] for name in locators}
    unknown: dict[str, str] = {}
    failed: dict[str, str] = {}
    located = 0
    for number, fact in enumerate(track(facts, "Locating")):
        if limit is not None and located >= limit:
            break
        of_fact: dict[str, R] = {}
        for name, locator in locators.items():
            stem = folder.edit_path(number, fact.id).name + (f"-{name}" if len(locators) > 1 else "")
            record = done.get(f"{fact.id}:{name}")
            if record is None:
                record, result = _located(lm, fact, locator, name, answer)
                if result is not None:
                    result.save(folder.path / "results" / stem)
                    result.plot(folder.path / "pictures" / f"{stem}{picture}")
                if record["outcome"] != "crashed":
                    folder.append(record)  # last: what has a line is done
                done[record["id"]] = record
            elif record["outcome"] == "located":
                result = load(folder.path / "results" / stem)
            if record["outcome"] != "located":
                (unknown if record["outcome"] == "unknown" else failed)[fact.id] = record["why"]
                break
            assert result is not None
            of_fact[name] = result
        else:
            located += 1
            for name, result in of_fact.items():
                results[name].append(result)
    times: dict[str, list[float]] = {name: [] for name in locators}
    for record in done.values():
        if record["outcome"] == "located" and record["locator"] in times:
            times[record["locator"]].append(record["seconds"])
    return Survey(results, unknown, failed, {name: sum(each) / len(each) for name, each in times.items() if each})


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
