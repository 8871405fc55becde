"""Where a sequence of edits stands, in memory and in the run's folder, so that a killed run goes on from there."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from corrigenda import Edit
from corrigenda.runs.environment import peak_memory_mb
from corrigenda.runs.folder import read_object
from corrigenda.system.files import write_json
from eval.protocols.runs import EditRun
from eval.protocols.settings import Regime

_REMEDY = "begin a new run, or delete position.json to make the edits again from the first one"


@dataclass
class Position:
    """Where a sequence stands.

    Attributes:
        done: facts that were edited (or failed, or repeated another).
        edits: the edits that hold, in order; for "extend" and "together" at most one.
        saved: the folders of those that are saved, relative to the run's.
        peak: the most memory held so far, by the processes before this one too, in MB.
        made: for "together" the seconds the edit took, and why there is none.
    """

    done: int
    edits: list[Edit]
    saved: list[str]
    peak: float
    made: tuple[float, str] = (0.0, "")


class SavedPosition:
    """The position of a run as it was saved last: ``position.json``, and the edits in ``edits/``.

    Args:
        run: the run.
        regime: how its edits come together.
        kept_at: the T whose edits stay, though later ones take their place.
    """

    def __init__(self, run: EditRun, regime: Regime, kept_at: Collection[int] = ()) -> None:
        self._run = run
        self._regime = regime
        self._kept = {run.folder.edit_path(t, "all") for t in kept_at}

    @property
    def done(self) -> int:
        """How many facts were edited (or failed, or repeated another)."""
        return int(self._state["done"]) if self._path.is_file() else 0

    def load(self) -> Position:
        """The position, with its edits; at the beginning where none was saved.

        Raises:
            ValueError: it is damaged, or records are missing of facts that were edited.
        """
        if not self._path.is_file():
            return Position(0, [], [], 0.0)
        state = self._state
        done = [fact for fact in self._run.facts[: state["done"]] if fact.id in self._run.cases]
        # Where all facts are edited at once, their records come with the checkpoint, after the position.
        if self._regime != "together" and len(done) < state["done"]:
            raise ValueError(
                f"{self._path} is at {state['done']} facts, but cases.jsonl beside it has records of only {len(done)} "
                f"of them; {_REMEDY}"
            )
        edits = [Edit.load(self._run.folder.path / name) for name in state["edits"]]
        seconds, error = state["made"]
        return Position(state["done"], edits, list(state["edits"]), state["peak_memory_mb"], (seconds, error))

    def save(self, position: Position) -> None:
        """Saves the edits that are not saved yet, and then, in one stroke, the position."""
        run = self._run
        if self._path.is_file() and self.done == position.done:
            return
        position.peak = max(position.peak, peak_memory_mb())
        if self._regime == "stack":
            for edit in position.edits[len(position.saved) :]:
                fact = edit.origin.facts[-1]
                path = run.folder.edit_path(run.numbers[fact.id], fact.id)
                edit.save(path)
                position.saved.append(path.relative_to(run.folder.path).as_posix())
        else:
            position.saved = []
            for edit in position.edits:
                path = run.folder.edit_path(position.done, "all")
                edit.save(path)
                position.saved.append(path.relative_to(run.folder.path).as_posix())
        state = {"done": position.done, "edits": position.saved, "peak_memory_mb": position.peak, "made": position.made}
        write_json(self._path, state)
        self.forget_others(position.saved)

    def forget_others(self, saved: Collection[str]) -> None:
        """Removes edits that others took the place of, but those to be kept.

        One is left where a run was killed just before this.
        """
        if self._regime == "stack":
            return
        for path in (self._run.folder.path / "edits").glob("*"):
            if path.relative_to(self._run.folder.path).as_posix() not in saved and path not in self._kept:
                shutil.rmtree(path, ignore_errors=True)

    @cached_property
    def _path(self) -> Path:
        return self._run.folder.path / "position.json"

    @property
    def _state(self) -> dict[str, Any]:
        state = read_object(self._path, _REMEDY)
        kinds: dict[str, Any] = {"done": int, "edits": list, "peak_memory_mb": (int, float), "made": list}
        odd = [name for name, kind in kinds.items() if not isinstance(state.get(name), kind)]
        if odd or not 0 <= state["done"] <= len(self._run.facts):
            raise ValueError(f"{self._path}: damaged ({', '.join(odd) or 'done'} cannot be); {_REMEDY}")
        return state
