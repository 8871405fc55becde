"""Edits of more and more made facts, and the bits of them that the model knows, before and after each edit."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from corrigenda import Edit, EditRefusedError, Fact, LanguageModel
from corrigenda.edits.weights import WeightEdit
from corrigenda.models.alone import one_thread
from corrigenda.runs.folder import RunFolder
from corrigenda.system.progress import track
from eval.scoring.candidates import bits_known
from jobs.capacity.results import Capacity, Point

Way: TypeAlias = Callable[[LanguageModel, Sequence[Fact]], Edit]
"""How facts are put into a model in one edit, which leaves it unchanged: an editor's `edit`."""


def batches(counts: Sequence[int], at_least: int) -> Iterator[tuple[int, range]]:
    """For each count the places of the facts of each edit: as many edits as have so many facts together, or one."""
    for count in counts:
        for number in range(math.ceil(at_least / count)):
            yield count, range(number * count, (number + 1) * count)


@one_thread
def measure_capacity(
    lm: LanguageModel,
    facts: Sequence[Fact],
    candidates: Mapping[str, Sequence[str]],
    ways: Mapping[str, Way],
    counts: Sequence[int],
    at_least: int,
    folder: RunFolder,
) -> Capacity:
    """Edits facts together, so many at once, and measures what of these the model then knows.

    What was measured is on the disk as soon as it is there: a line for each fact before (``before.jsonl``) and for each
    edit (``cases.jsonl``); the same call goes on with it. A refused edit leaves the model as it was, and counts as 0
    bits. There have to be as many facts as `batches` has places.
    """
    plan = list(batches(counts, at_least))
    before = {str(line["id"]): float(line["bits"]) for line in folder.cases("before")}
    missing = [fact for fact in facts[: max(places.stop for _, places in plan)] if fact.id not in before]
    for start in range(0, len(missing), at_least):
        some = missing[start : start + at_least]
        for fact, bits in zip(some, bits_known(lm, some, candidates), strict=True):
            folder.append({"id": fact.id, "bits": bits}, to="before")
            before[fact.id] = bits
    done = {line["id"]: line for line in folder.cases()}
    asked = [(f"{name}:{count}:{places.start}", way, places) for name, way in ways.items() for count, places in plan]
    left = [each for each in asked if each[0] not in done]
    for id_, way, places in track(left, "Editing and measuring"):
        batch = [facts[place] for place in places]
        done[id_] = {"id": id_, **_measured(lm, batch, candidates, way, [before[fact.id] for fact in batch])}
        folder.append(done[id_])
    of_ways: dict[str, dict[int, list[dict[str, Any]]]] = {name: {count: [] for count in counts} for name in ways}
    for name, of_counts in of_ways.items():
        for count, places in plan:
            of_counts[count].append(done[f"{name}:{count}:{places.start}"])
    return Capacity(
        lm.name,
        lm.memory(0).d_ffn,
        {name: len(values) for name, values in candidates.items()},
        {name: tuple(Point.of(count, lines) for count, lines in of.items()) for name, of in of_ways.items()},
    )


def _measured(
    lm: LanguageModel,
    facts: Sequence[Fact],
    candidates: Mapping[str, Sequence[str]],
    way: Way,
    before: Sequence[float],
) -> dict[str, Any]:
    """The line of one edit."""
    line = {"subjects": [fact.subject for fact in facts], "before": list(before)}
    begin = time.perf_counter()
    try:
        edit = way(lm, facts)
        seconds = time.perf_counter() - begin
        with edit.applied(lm):
            after = bits_known(lm, facts, candidates)
    except EditRefusedError as refusal:
        seconds = time.perf_counter() - begin
        return {**line, "after": list(before), "parameters": 0, "numbers": 0, "seconds": seconds, "error": str(refusal)}
    written = sum(math.prod(shape) for shape in edit.changed.values()) if isinstance(edit, WeightEdit) else 0
    sizes = {"parameters": written or edit.n_numbers, "numbers": edit.n_numbers}
    return {**line, "after": after, **sizes, "seconds": seconds, "error": ""}
