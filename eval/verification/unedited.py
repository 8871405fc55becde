"""`Unedited`: what the unedited model does with the facts of a list, measured once and kept fact by fact.

Each is kept by the weights, their precision and the kind of device, the fact with all its prompts, the settings, and
the version of the code that measures. A new measurement would be the same up to the rounding of other batches.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corrigenda import Fact, LanguageModel
from corrigenda.system.files import read_kept, write_checked
from eval.measure import depends_on, measure
from eval.measurement import AGAIN, HeldOut, Measurement, file_of, stored_measurements, write_measurements
from eval.scoring.held_out import read_held_out
from eval.settings import EvalSettings


class Unedited:
    """Measurements of the unedited model in a folder, which several lists, models and settings may share.

    Edits that are applied are lifted while it is measured.
    """

    def __init__(self, lm: LanguageModel, settings: EvalSettings, folder: Path) -> None:
        self._lm = lm
        self._settings = settings
        self._folder = folder
        self._with = depends_on(lm, settings, "eval.verification.unedited")
        self._held_out: HeldOut | None = None

    def held_out(self) -> HeldOut | None:
        """What it gives to the held-out texts; None where no window is asked for."""
        if self._held_out is None:
            path = file_of(self._folder, self._name("held-out texts"))
            kept = read_kept(path, AGAIN)
            if kept is not None:
                self._held_out = HeldOut.from_dict(json.loads(kept[1]["held_out"]))
            else:
                with self._lm.edits.suspended():
                    self._held_out = read_held_out(self._lm, self._settings)
                if self._held_out is not None:
                    write_checked(path, {}, {"held_out": json.dumps(self._held_out.to_dict(), allow_nan=False)})
        return self._held_out

    def of(self, facts: Sequence[Fact]) -> list[Measurement]:
        """The measurement of each fact; those that are not kept yet are measured together."""
        found = {fact.id: kept for fact in facts if (kept := self._kept(fact)) is not None}
        lacking = [fact for fact in facts if fact.id not in found]
        if lacking:
            held_out = self.held_out()
            with self._lm.edits.suspended():
                measured = measure(self._lm, lacking, self._settings, held_out=held_out)
            for fact, one in zip(lacking, measured, strict=True):
                write_measurements(self._folder, self._name(fact.to_dict()), [one])
                found[fact.id] = one
        return [found[fact.id] for fact in facts]

    def forget_others(self, facts: Sequence[Fact]) -> None:
        """Removes all that is kept but what these facts, with this model and these settings, need."""
        names = {self._name("held-out texts"), *(self._name(fact.to_dict()) for fact in facts)}
        for path in self._folder.glob("*"):
            if path.stem not in names:
                path.unlink(missing_ok=True)

    def _kept(self, fact: Fact) -> Measurement | None:
        found = stored_measurements(self._folder, self._name(fact.to_dict()))
        return None if found is None else found[0]

    def _name(self, asked: Any) -> str:
        said = json.dumps([*self._with, asked], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:24]
