"""`Journal`: what a sequence of edits has done; a killed run goes on from what its lines say.

``journal.jsonl`` in the run's folder. Each line has a "kind", and "t", the number of edits that it is of:

saved       the edits in force lie in the folder; where edits are stacked, the new ones are named
scored      how a fact stands: its case
fixed       the same of the fixed locality set
unedited    figures of the harness's tasks on the unedited model
point       a point of the curve, when all of its facts are scored
fine_tuning how the facts of the last point stand after fine-tuning

A line is added when what it says is done, and none is ever changed.
"""

import shutil
from collections.abc import Collection
from itertools import chain
from pathlib import Path
from typing import Any

from corrigenda import Edit
from corrigenda.runs.environment import peak_memory_mb
from corrigenda.runs.records import JOURNAL, records_in
from eval.evaluation import Case
from eval.protocols.runs import EditRun
from eval.protocols.settings import Regime

CASES = ("scored", "fixed")
"""The kinds that are cases; of these only those of one T are held in memory."""


def lines_of(folder: Path, kind: str, t: int | None = None) -> list[dict[str, Any]]:
    """What the lines of a kind say in a run's folder, by default of all T."""
    return [line for line in records_in(folder, JOURNAL) if line.pop("kind") == kind and t in (None, line["t"])]


class Journal:
    """The journal of a run, and where its sequence stands.

    Args:
        run: the run.
        regime: how its edits come together.
        due: the T at which facts are scored.
        kept: whether the edits at these T stay, though later ones take their place.

    Attributes:
        done: facts that were edited (or failed, or repeated another).
        edits: the edits that hold, in order; for "extend" and "together" at most one.
        saved: the folders of those that are saved, relative to the run's.
        made: for "together" the seconds the edit took, and why there is none.
    """

    def __init__(self, run: EditRun, regime: Regime, due: Collection[int], kept: bool) -> None:
        self._run = run
        self._stacked = regime == "stack"
        self._together = regime == "together"
        self._due = due
        self._kept = {run.folder.edit_path(t, "all") for t in due} if kept else set()
        self.read()

    def read(self) -> None:
        """Takes up what the file says, and nothing else."""
        self._said: dict[str, dict[int, dict[str, Any]]] = {}
        self._scores: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self._written = set[tuple[str, int]]()  # the kinds and T of cases in the file, which is read for no others
        lost = set[int]()
        for line in self._run.folder.cases(JOURNAL):
            if (kind := line.pop("kind")) not in CASES:
                self.said(kind)[line["t"]] = line
                continue
            self._written.add((kind, line["t"]))
            if self._together and kind == "scored" and line["id"] not in self._run.cases:
                lost.add(line["t"])
        for t in lost:  # a point comes after its cases: these are damaged, and noted again with it
            self.said("point").pop(t, None)

    def add(self, kind: str, t: int, **said: Any) -> None:
        """Adds a line; after a crash in memory alone."""
        line, scores = {"t": t, **said}, self.scores(kind, t) if kind in CASES else []
        if not self._run.crashed:
            self._run.folder.append({"kind": kind, **line}, JOURNAL)
        if kind in CASES:
            scores.append(line)
            self._written.add((kind, t))
        else:
            self.said(kind)[t] = line

    def said(self, kind: str) -> dict[int, dict[str, Any]]:
        """By T what the line of a kind (that is none of cases) says."""
        return self._said.setdefault(kind, {})

    def scores(self, kind: str, t: int) -> list[dict[str, Any]]:
        """The records of cases at T."""
        if kind not in self._scores or self._scores[kind][0] != t:
            there = (kind, t) in self._written
            self._scores[kind] = t, lines_of(self._run.folder.path, kind, t) if there else []
        return self._scores[kind][1]

    def cases(self, kind: str, t: int) -> list[Case]:
        """The cases at T."""
        return [Case.from_dict(record) for record in self.scores(kind, t)]

    @property
    def peak_memory_mb(self) -> float:
        """The most memory held so far, by the processes before this one too, in MB."""
        return max([peak_memory_mb(), *(line["peak_memory_mb"] for line in self.said("saved").values())])

    @property
    def saved_at(self) -> int:
        """The last T at which edits were saved and before which nothing is missing: no edit, no case and no point."""
        run, points = self._run, self.said("point")
        for t, said in sorted(self.said("saved").items(), reverse=True):
            # Where all facts are edited at once, their cases come with the checkpoint.
            cases = self._together or all(map(run.is_done, run.facts[:t]))
            edits = [(run.folder.path / name / "edit.json").is_file() for name in self._edits(t)]
            if cases and edits == [True] * said["n_edits"] and all(at in points for at in self._due if at < t):
                return t
        return 0

    def load(self) -> None:
        """Goes to where the sequence was saved last."""
        self.done = self._saved_at = t = self.saved_at
        self.saved = self._edits(t)
        self.edits = [Edit.load(self._run.folder.path / name) for name in self.saved]
        self.made: tuple[float, str] = tuple(self.said("saved")[t]["made"]) if t else (0.0, "")
        self._forget_others()

    def save(self) -> None:
        """Saves the edits that are not saved yet; not after a crash, before which the sequence goes on another time."""
        run = self._run
        if run.crashed or self._saved_at == self.done:
            return
        new = []
        for edit in self.edits[len(self.saved) if self._stacked else 0 :]:
            fact = edit.origin.facts[-1]
            place = (run.numbers[fact.id], fact.id) if self._stacked else (self.done, "all")
            run.folder.save_edit(edit, *place)
            new.append(run.folder.edit_path(*place).relative_to(run.folder.path).as_posix())
        said = {"edits": new, "n_edits": len(self.edits), "peak_memory_mb": self.peak_memory_mb, "made": self.made}
        self.add("saved", self.done, **said)
        self.saved, self._saved_at = self._edits(self.done), self.done
        self._forget_others()

    def _edits(self, t: int) -> list[str]:
        """The folders of the edits in force at T; where they are stacked, a line has the new ones."""
        lines = self.said("saved")
        found = [lines[at]["edits"] for at in sorted(lines) if at == t or (self._stacked and at < t)]
        return list(dict.fromkeys(chain.from_iterable(found)))

    def _forget_others(self) -> None:
        """Removes edits that others took the place of, but those to be kept.

        One is left where a run was killed just before this.
        """
        kept = self._kept | {self._run.folder.path / name for name in self.saved}
        for path in () if self._stacked else (self._run.folder.path / "edits").glob("*"):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)
