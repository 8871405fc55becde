"""`PreEditMeasurement`: what the unedited model does with many facts, measured once, a chunk at a time, and kept."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from corrigenda import Fact, LanguageModel
from corrigenda.system.files import cache_folder
from corrigenda.system.progress import counted, track
from eval.measure import depends_on, measure
from eval.measurement import HeldOut, Measurement, file_of, stored_measurements, write_measurements
from eval.scoring.held_out import read_held_out
from eval.settings import EvalSettings

MOST_BYTES = 10 * 2**30
"""The most that `shared_folder` holds of what was not used for `UNUSED` seconds."""
UNUSED = 24 * 3600


@dataclass(frozen=True)
class ReducedEvaluation:
    """Facts, by their places, of which less is measured than of the others, and what."""

    places: frozenset[int]
    settings: EvalSettings


class PreEditMeasurement:
    """The measurements of the unedited model that later ones are compared with.

    Chunks are cut by a fact's place, so that a run that goes on after a kill measures in the same batches as one that
    was never stopped, and gives the same figures to the last bit. Next-token distributions fill the memory quickly (two
    megabytes for a fact with ten neighbours and a vocabulary of 50,000): only one chunk is held.

    A file's name is made of all that its chunk's measurements depend on: this version of the code and of the metrics,
    the libraries, the weights, precision and kind of device, the chunk's facts and what is measured of them. What lies
    there is, bit for bit, what would be measured again; so many models, sets of facts and settings may share a folder.

    Args:
        lm: the model; edits that are applied are lifted while it is measured.
        facts: the facts.
        settings: what to measure.
        chunk: how many facts are measured together.
        folder: where measurements are kept; without one a chunk is measured anew whenever another was asked for since.
        reduced: facts of which less is measured, and what; none by default.
    """

    def __init__(
        self,
        lm: LanguageModel,
        facts: Sequence[Fact],
        settings: EvalSettings,
        chunk: int,
        folder: Path | None = None,
        reduced: ReducedEvaluation | None = None,
    ) -> None:
        self._lm = lm
        self._facts = facts
        self._settings = settings
        self._size = chunk
        self._folder = folder
        self._reduced = reduced
        self._on = [] if folder is None else depends_on(lm, settings, "eval.protocols.pre_edit")
        self._held: dict[int, list[Measurement]] = {}
        self._held_out: HeldOut | None = None

    @property
    def chunks(self) -> range:
        """The numbers of the chunks."""
        return range(-(-len(self._facts) // self._size))

    def facts(self, number: int) -> Sequence[Fact]:
        """The facts of a chunk."""
        return self._facts[number * self._size : (number + 1) * self._size]

    def missing(self, n_facts: int) -> list[int]:
        """The chunks of the first so many facts that could be kept and are not measured yet."""
        if self._folder is None:
            return []
        numbers = self.chunks[: -(-n_facts // self._size)]
        return [number for number in numbers if not file_of(self._folder, self._name(number)).is_file()]

    def complete(self, n_facts: int, stop: Callable[[], bool]) -> bool:
        """Measures what is not measured yet of the first so many facts; False if it was stopped before the end."""
        missing = self.missing(n_facts)
        if not missing:
            return True
        with self._lm.edits.suspended():
            for number in track(missing, f"Measuring the unedited model on {counted(n_facts, 'fact')}", bar=False):
                if stop():
                    return False
                self.chunk(number)
        return True

    def of(self, place: int) -> Measurement:
        """The measurement of one fact."""
        return self.chunk(place // self._size)[place % self._size]

    def chunk(self, number: int) -> list[Measurement]:
        """The measurements of a chunk's facts."""
        if number not in self._held:
            self._held.clear()
            self._held[number] = self._stored(number) or self._measured(number)
        return self._held[number]

    def _measured(self, number: int) -> list[Measurement]:
        with self._lm.edits.suspended():
            if self._held_out is None:
                self._held_out = read_held_out(self._lm, self._settings)
            found = self._by_parts(number)
        if self._folder is not None:
            write_measurements(self._folder, self._name(number), found)
        return found

    def _apart(self, number: int) -> list[int]:
        """The places in a chunk of the facts of which less is measured."""
        begin, apart = number * self._size, frozenset[int]() if self._reduced is None else self._reduced.places
        return [place for place in range(len(self.facts(number))) if begin + place in apart]

    def _by_parts(self, number: int) -> list[Measurement]:
        """The measurements of a chunk's facts: of those that are fully measured together, and of the others."""
        facts, few = self.facts(number), self._apart(number)
        found: dict[int, Measurement] = {}
        parts = [([place for place in range(len(facts)) if place not in few], self._settings)]
        parts += [] if self._reduced is None else [(few, self._reduced.settings)]
        for places, settings in parts:
            if places:
                asked = [facts[place] for place in places]
                held_out = self._held_out if settings.perplexity_windows else None
                found |= zip(places, measure(self._lm, asked, settings, held_out=held_out), strict=True)
        return [found[place] for place in range(len(facts))]

    def _stored(self, number: int) -> list[Measurement] | None:
        if self._folder is None:
            return None
        name = self._name(number)
        found = stored_measurements(self._folder, name)
        if found is not None:
            with suppress(OSError):  # another process removed it, or it is somebody else's
                os.utime(file_of(self._folder, name))
        return found

    def _name(self, number: int) -> str:
        """Of a chunk's file."""
        few = self._apart(number)
        less = None if self._reduced is None or not few else [few, self._reduced.settings.before_an_edit]
        asked = [less, [fact.to_dict() for fact in self.facts(number)]]
        return hashlib.sha256(json.dumps([*self._on, *asked], sort_keys=True).encode()).hexdigest()[:32]


def shared_folder() -> Path:
    """The folder in the cache where runs share measurements of the unedited model.

    Where it holds more than `MOST_BYTES`, what was not used for a day is removed, the oldest first.
    """
    folder = cache_folder() / "before"
    with suppress(OSError):  # another process removes it, or it is somebody else's
        found = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder))
        too_many = sum(size for _, size, _ in found) - MOST_BYTES
        for used, size, path in found:
            if too_many <= 0 or time.time() - used < UNUSED:
                break
            os.unlink(path)
            too_many -= size
    return folder
