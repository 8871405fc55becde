"""`PreEditMeasurement`: what the unedited model does with many facts, measured once, a chunk at a time, and kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from corrigenda import Fact, LanguageModel
from corrigenda.data import FactSet
from corrigenda.runs.ids import code_version
from corrigenda.system.progress import counted, track
from eval.measure import measure
from eval.measurement import HeldOut, Measurement, file_of, stored_measurements, write_measurements
from eval.scoring.held_out import read_held_out
from eval.settings import EvalSettings


@dataclass(frozen=True)
class ReducedEvaluation:
    """Facts of which less is measured than of the others.

    Attributes:
        places: their places among the facts.
        settings: what is measured of them.
    """

    places: frozenset[int]
    settings: EvalSettings


class PreEditMeasurement:
    """The measurements of the unedited model that later ones are compared with.

    Chunks are cut by a fact's place, so that a run that goes on after a kill measures in the same batches as one that
    was never stopped, and gives the same figures to the last bit. Next-token distributions fill the memory quickly (two
    megabytes for a fact with ten neighbours and a vocabulary of 50,000): only one chunk is held.

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
        self._held: dict[int, list[Measurement]] = {}
        self._held_out: HeldOut | None = None

    @classmethod
    def shared(
        cls,
        lm: LanguageModel,
        facts: Sequence[Fact],
        settings: EvalSettings,
        chunk: int,
        folder: Path,
        reduced: ReducedEvaluation | None = None,
    ) -> PreEditMeasurement:
        """One that takes up what others measured, in a folder for many models, sets of facts and settings.

        What lies there was measured by this version of the code, on the same weights, in the same precision, on the
        same kind of device, in the same batches: it is, bit for bit, what would be measured again.
        """
        worked_on = [lm.cache_key, str(lm.dtype), lm.device.type, FactSet("", tuple(facts)).fingerprint]
        apart = None if reduced is None else [sorted(reduced.places), asdict(reduced.settings)]
        asked = [asdict(settings), chunk, apart]
        key = json.dumps([*worked_on, *asked, code_version(entry=("eval.protocols.pre_edit",))], sort_keys=True)
        return cls(lm, facts, settings, chunk, folder / hashlib.sha256(key.encode()).hexdigest()[:16], reduced)

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
        return [number for number in numbers if not file_of(self._folder, f"{number:04d}").is_file()]

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
            write_measurements(self._folder, f"{number:04d}", found)
        return found

    def _by_parts(self, number: int) -> list[Measurement]:
        """The measurements of a chunk's facts: of those that are fully measured together, and of the others."""
        facts, begin = self.facts(number), number * self._size
        apart = frozenset[int]() if self._reduced is None else self._reduced.places
        few = [place for place in range(len(facts)) if begin + place in apart]
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
        return None if self._folder is None else stored_measurements(self._folder, f"{number:04d}")
