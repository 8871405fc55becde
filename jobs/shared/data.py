"""The facts of a run, and those of the fixed locality set."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import DictConfig

from corrigenda import Fact
from corrigenda.data import FactSet, read_facts
from corrigenda.data.other_subjects import with_other_subjects
from corrigenda.data.parts import overlaps, require_disjoint, take_part
from corrigenda.data.read import good_facts
from corrigenda.errors import RecordError
from corrigenda.runs.records import records_in
from corrigenda.runs.store import read_run
from corrigenda.settings.checked import Count, checked
from jobs.shared.base import choices
from jobs.shared.settings import check
from jobs.shared.words import setting

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
@checked
class LocalitySettings:
    """``job.locality``: the fixed prompts that a sequence scores at every T, those of other facts.

    Attributes:
        path: None: the facts after the run's own in the same data; or "embedded", or a file.
        schema: of the file.
        offset: so many records are passed over, of the file, or of those after the run's own.
        limit: facts; 0 for none.
    """

    group: ClassVar[str] = "job.locality"

    path: str | None = None
    schema: str = "auto"
    offset: Count = 0
    limit: Count = 30


def read_data(data: Mapping[str, Any]) -> FactSet:
    """The facts that the group ``data`` names, with ``data.other_subjects`` prompts about other subjects each.

    Raises:
        ValueError: no file is named, or the facts are among those of ``disjoint_from``; or as `read_facts` says.
    """
    facts = _facts(data)
    if (count := data.get("other_subjects")) and not all(fact.neighbourhood for fact in facts):
        whole = good_facts(data["path"], data["schema"], data["split"], data["config"])
        facts = with_other_subjects(facts, list(whole), count)
    if data.get("disjoint_from") is not None:
        require_disjoint(_facts_used(data["disjoint_from"]), list(facts))
    if data.get("tuned_on") is not None:
        _warn_of_tuned(str(data["tuned_on"]), facts)
    # Last: other orders are of the same facts.
    order = data.get("order")
    return facts if order is None else facts.shuffled(order)


def _warn_of_tuned(source: str, facts: FactSet) -> None:
    """Warns where facts are among those on which the settings were tuned that the model's configuration gives."""
    if not Path(source).is_file():
        logger.warning("%s, the facts on which the model's settings were tuned, is not there any more", source)
        return
    found = overlaps(list(read_facts(source)), list(facts))
    if found:
        fact, what = found[0]
        logger.warning(
            "%d of %d facts are among those on which the model's settings were tuned (the first: %s, %s); figures on "
            "them are too good (%s makes this an error)",
            len(found),
            len(facts),
            fact.id,
            what,
            setting("data.disjoint_from", source),
        )


def fixed_locality(config: DictConfig) -> list[Fact]:
    """The facts whose neighbourhood and locality prompts are scored at every T: those after the run's own.

    A fact that `data.disjoint_from` forbids is passed over, and the next one taken.

    Raises:
        ValueError: all of the facts that there are, are forbidden.
    """
    asked = check(LocalitySettings, config.job.locality)
    if not asked.limit:
        return []
    data: dict[str, Any] = dict(config.data)
    if asked.path is not None:
        data |= {"path": asked.path, "schema": asked.schema, "offset": asked.offset}
    elif data["limit"] is None:
        logger.warning("there is no fixed locality set: the run edits all facts of its data (job.locality.path=...)")
        return []
    else:
        data |= {"offset": data["offset"] + data["limit"] + asked.offset}
    forbidden = [] if data.get("disjoint_from") is None else _facts_used(data["disjoint_from"])
    window = asked.limit
    while True:
        try:
            found = list(_facts({**data, "limit": window}))
        except ValueError as error:
            if asked.path is not None or isinstance(error, RecordError):
                raise
            logger.warning("the fixed locality set is empty: %s", error)  # most likely no record follows the run's own
            return []
        barred = {fact.id for fact, _ in overlaps(forbidden, found)}
        kept = [fact for fact in found if fact.id not in barred][: asked.limit]
        if len(kept) == asked.limit or len(found) < window:
            break
        window *= 2
    if not kept:
        raise ValueError(
            f"the fixed locality set would be empty: data.disjoint_from={data['disjoint_from']} forbids all "
            f"{len(found)} facts for it; name others (job.locality.path=...), or none (job.locality.limit=0)"
        )
    passed_over = found.index(kept[-1]) + 1 - len(kept)
    if passed_over:
        logger.warning(
            "%d facts are passed over for the fixed locality set, which has %d: data.disjoint_from forbids them",
            passed_over,
            len(kept),
        )
    return kept


def _facts(data: Mapping[str, Any]) -> FactSet:
    values = {"part": None, **data}
    if values["path"] is None:
        raise ValueError(
            f"data={choices()['data']} comes from a file of yours: give data.path=, a .json, .jsonl or .csv file"
        )
    names = ("schema", "split", "config", "limit", "offset", "on_error")
    if values["part"] is None:
        return read_facts(values["path"], **{name: values[name] for name in names})
    whole = {name: values[name] for name in names} | {"limit": None, "offset": 0}
    return take_part(read_facts(values["path"], **whole), values["part"], values["limit"], values["offset"])


def _facts_used(source: str) -> list[Fact]:
    """The facts of a finished run, given its folder, or of any source that can be read."""
    if not isinstance(source, str) or not source.strip():
        raise ValueError(f"data.disjoint_from={source!r}: give the folder of a run, or a source of facts")
    if not (Path(source) / "config.yaml").is_file():
        try:
            return list(read_facts(source))
        except (ValueError, OSError) as error:
            raise type(error)(f"data.disjoint_from={source}: {error}") from None
    run = read_run(Path(source))
    if run.job == "tune" and (Path(source) / "facts.jsonl").is_file():
        return list(read_facts(str(Path(source) / "facts.jsonl")))
    if (run.state, run.job) != ("finished", "edit"):
        raise ValueError(
            f"data.disjoint_from={source}: this run is {run.state} (job {run.job}), and only a finished run of edits "
            "says which facts it used; name the data instead"
        )
    return [Fact.from_dict(record["fact"]) for record in records_in(Path(source))]
