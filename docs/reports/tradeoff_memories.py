"""The memories of docs/tradeoff.md: how one is learned, and what it answers rightly and wrongly."""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any, NamedTuple

import torch
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from options import Data
from pages import Made, add_note, made, noting, read_json
from torch import Tensor

from corrigenda import CodebookEdit, Edit, Fact, LanguageModel, SideMemoryEdit
from corrigenda.forward.recording import record
from corrigenda.models.routes import MAIN
from corrigenda.system.files import write_json
from editing import Editor, EditRefusedError, Grace, Unrelated, Wise
from editing.memory_based.wise.margins import threshold_between
from editing.memory_based.wise.state import WiseState
from editing.shared.extending import state_of
from editing.shared.training_rows import RowsForward, SideLayer
from eval import EvalSettings, measure
from eval.scoring.held_out import held_out_windows
from jobs.shared.outside import add_choices

USES = ("eval.measure", "editing.Wise", "editing.Grace")
SETTINGS = EvalSettings(max_new_tokens=20, perplexity_windows=0)
WINDOWS = EvalSettings()  # which windows of the held-out texts are asked: those of the perplexity
ROWS, CHUNK = 32, 10  # prompts run at once; facts after which a memory is saved
EDITS, FREE, FORCED = "free_generation_strict", "paraphrase_free_generation_strict", "paraphrase_token_accuracy"
KEYS = ("token_accuracy", EDITS, FORCED, FREE)
KINDS = ("locality", "same_form", "windows")
DIALS = {"grace": "relative_radius", "grace_wide": "widen"}
"""What a curve of GRACE is over; one of WISE is over the threshold that the editor set."""
LEARNED = {"wise_whitened": ("margin",), "wise_paper": ()}
"""Settings that what both WISE learn does not depend on: trials that differ in these alone share it."""
Point = dict[str, Any]
Memory = SideMemoryEdit | CodebookEdit


class Part(NamedTuple):
    """The facts of a step, and where they come from, for the page.

    The locality prompts of the `edited` ones are asked, too; of the `others`, about other subjects, the prompts alone.
    """

    edited: Sequence[Fact]
    others: Sequence[Fact]
    described: str


def configured(name: str, unrelated: Unrelated, n: int, settings: Mapping[str, float]) -> Editor:
    """An editor as the command line makes it, with some settings, and with room for n facts."""
    add_choices()
    with initialize_config_module("conf", version_base=None):
        editor: Editor = instantiate(compose("config", [f"editor={name}"]).editor, _convert_="all")
    if isinstance(editor, Wise):
        editor = dataclasses.replace(editor, edits_per_shard=-(-n // editor.shards), unrelated=unrelated)
    return dataclasses.replace(editor, **settings)  # type: ignore[type-var]


class RememberingGrace(Grace):
    """GRACE that learns no value twice.

    Inserted again with another radius, a fact has another ball, and balls conflict otherwise. What is learned depends
    on the fact and on where its value starts, not on the radius: the same start gives the same value, bit for bit. Only
    an entry that several facts share starts otherwise, and is learned anew.
    """

    values: dict[str, tuple[Tensor, list[float]]]

    def _learn(self, forward: RowsForward, side: SideLayer, start: Tensor) -> tuple[Tensor, list[float]]:
        asked = (forward.coefficients, forward.targets, start)
        key = hashlib.sha256(b"".join(part.detach().cpu().numpy().tobytes() for part in asked)).hexdigest()
        if key not in self.values:
            self.values[key] = super()._learn(forward, side, start)
        return self.values[key]


class Shared:
    """What the editors of a step share: the model, the facts, the prompts, and what is learned, in a work folder.

    Both WISE learn to leave `unrelated` alone.
    """

    def __init__(self, lm: LanguageModel, part: Part, work: Path, unrelated: Unrelated) -> None:
        self.lm, self.unrelated = lm, unrelated
        self.facts = [dataclasses.replace(fact, locality=(), neighbourhood=(), generation=()) for fact in part.edited]
        said = json.dumps([[fact.to_dict() for fact in self.facts], [fact.statement for fact in part.others]])
        self.work = work / hashlib.sha256(said.encode()).hexdigest()[:8]  # what was learned of other facts is not these
        self.asked = {
            "locality": [lm.tokens(probe.prompt) for fact in part.edited for probe in fact.locality],
            "same_form": [lm.tokens(fact.statement) for fact in part.others],
            "windows": held_out_windows(lm, WINDOWS),
        }
        self._values: dict[str, tuple[Tensor, list[float]]] = {}

    def noted(self, name: str, find: Callable[[], Point]) -> tuple[Point, Made]:
        """What a step finds of an editor, and how it was made; where all of it was there already, nothing is noted."""
        folder, there = self.work / f"made-{name}", set(self.work.glob("*.json"))
        with noting(USES) as note:
            figures = find()
        if set(self.work.glob("*.json")) != there:
            add_note(folder, note)
        return figures, made(folder)

    def trial(self, name: str, settings: Mapping[str, float]) -> Point:
        """What an editor does with some settings; why, where it refuses."""

        def find() -> Point:
            try:
                return self.point(self.learned(name, settings))
            except EditRefusedError as error:  # such as a loss that is not finite, with too large a learning rate
                return {"refused": str(error)[:200]}

        return self._once(["trial", name, *settings.values()], {"settings": settings}, find)

    def scaled(self, name: str, settings: Mapping[str, float], scale: float) -> Point:
        """What an editor does with its dial turned."""

        def find() -> Point:
            if dial := DIALS.get(name):
                return self.point(self.learned(name, {**settings, dial: settings[dial] * scale}))
            edit = self.learned(name, settings)
            assert isinstance(edit, SideMemoryEdit)
            return self.point(dataclasses.replace(edit, epsilons=scale * edit.epsilons))

        return self._once(["point", name, scale, *settings.values()], {"scale": scale}, find)

    def _once(self, named: Sequence[str | float], told: Point, find: Callable[[], Point]) -> Point:
        """A point, from the work folder where it is there."""
        path = self.work / f"{'-'.join(one if isinstance(one, str) else f'{one:g}' for one in named)}.json"
        if not path.is_file():
            begun = time.monotonic()
            write_json(path, {**told, **find(), "seconds": time.monotonic() - begun})
        found: Point = read_json(path)
        print(path.stem, f"{objective(found):.3f}", flush=True)
        return found

    def learned(self, name: str, settings: Mapping[str, float]) -> Memory:
        """The memory that an editor makes of the facts."""
        editor = configured(name, self.unrelated, len(self.facts), settings)
        if isinstance(editor, Grace):
            grace = RememberingGrace(**vars(editor))
            object.__setattr__(grace, "values", self._values)
            return grace.edit(self.lm, self.facts)
        assert isinstance(editor, Wise)
        same = {key: value for key, value in settings.items() if key not in LEARNED[name]}
        learner = configured(name, self.unrelated, len(self.facts), same)
        assert isinstance(learner, Wise)
        edit = self._side_memory(learner, self.work / "-".join([name, *(f"{k}={v:g}" for k, v in same.items())]))
        if editor.threshold == "smallest":
            return edit
        state = state_of("WISE", edit, WiseState)
        lowest = torch.tensor([math.inf if value is None else value for value in state.smallest_scores])
        far, near = torch.tensor(state.unrelated_scores), torch.tensor(state.near_scores)
        return dataclasses.replace(edit, epsilons=threshold_between(lowest, far, near, editor.margin))

    def _side_memory(self, editor: Wise, folder: Path) -> SideMemoryEdit:
        """Learned some facts at a time, and saved after them."""
        edit: Edit | None = Edit.load(folder) if (folder / "edit.json").is_file() else None
        done = 0 if edit is None else len(edit.origin.facts)
        editor.prepare(self.lm)
        for begin in range(done, len(self.facts), CHUNK):
            edit = editor.extend(self.lm, edit, self.facts[begin : begin + CHUNK])
            edit.save(folder)
        assert isinstance(edit, SideMemoryEdit)
        return edit

    def measured(self) -> dict[str, list[float]]:
        """The figures of each edited fact, of the model as it is."""
        measurements = measure(self.lm, self.facts, SETTINGS)
        return {key: [measurement.values.get(key, 0.0) for measurement in measurements] for key in KEYS}

    def point(self, edit: Memory) -> Point:
        """What an edit does: the figures of each fact, and for each prompt that nobody edited whether it answers."""
        seen = {kind: [int(answer) for answer in answered(self.lm, edit, self.asked[kind])] for kind in KINDS}
        with edit.applied(self.lm):
            return {"figures": self.measured(), "answered": seen}


def answered(lm: LanguageModel, edit: Memory, prompts: Sequence[Sequence[int]]) -> list[bool]:
    """For each prompt whether the memory answers it."""
    found: list[bool] = []
    with edit.applied(lm), torch.no_grad():
        for begin in range(0, len(prompts), ROWS):
            routes = record(lm, lm.batch([list(ids) for ids in prompts[begin : begin + ROWS]]), []).routes
            assert routes is not None
            found += (routes.decided[edit] != MAIN).tolist()
    return found


def objective(point: Data) -> float:
    """What is tuned for: the harmonic mean of three shares; nothing where the editor refused."""
    # The edits answered freely as asked, their paraphrases answered so, and the same-form prompts left alone.
    if "refused" in point:
        return 0.0
    shares = [fmean(point["figures"][key]) for key in (EDITS, FREE)]
    return harmonic_mean([*shares, 1 - fmean(point["answered"]["same_form"])])
