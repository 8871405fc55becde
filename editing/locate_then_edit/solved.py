"""Target values of many facts, solved for in batches and kept on disk: nothing is solved for twice.

A target depends on the model as it is (its weights, and the edits that are applied), the fact, the contexts, how it is
solved for, the layer and the site; not on the closed form that writes it, and to rounding not on the facts beside it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corrigenda import EditRefusedError, Fact, LanguageModel
from corrigenda.system.files import cache_folder, read_kept, write_checked
from corrigenda.system.progress import counted, track
from corrigenda.system.workers import Workers
from corrigenda.text.display import quoted
from editing.editor import FactRefusedError
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import Position, Prompts, build_prompts, warn_of_contexts
from editing.locate_then_edit.targets import Site, ValueSettings, solve_target_values
from editing.shared.frames import NO_FRAMES, Frames, warn_of_frames


@dataclass(frozen=True)
class Batch:
    """Some facts that are solved for side by side, and their prompts."""

    facts: Sequence[Fact]
    prompts: Prompts


def batches_of(
    editor: str,
    lm: LanguageModel,
    facts: Sequence[Fact],
    size: int,
    prefixes: Sequence[str],
    settings: ValueSettings,
    layers: Sequence[int],
    frames: Frames,
    position: Position = "subject",
) -> list[Batch]:
    """Facts in batches of a size, with their prompts but for those at an outlier state; what is left out is said.

    Facts that have no frames are named. Raises FactRefusedError: a fact is too long, or has no prompt that is no
    outlier; or it is to be written at its subject, in the last layer, and its prompt goes on.
    """
    if position == "subject" and lm.n_layers - 1 in layers:
        for fact in facts:
            if not fact.prompt.rstrip().endswith("{}"):
                raise FactRefusedError(
                    fact,
                    f"layer {lm.n_layers - 1} is the last of {lm.name}, so that nothing after the subject in "
                    f"{quoted(fact.statement)} reads what is written at the subject; name a layer below it",
                )
    batches = []
    for begin in range(0, len(facts), size):
        part = facts[begin : begin + size]
        prompts = build_prompts(lm, part, prefixes, settings.kl_prompt, settings.kl_position, frames, position)
        batches.append(Batch(part, prompts.ordinary(lm, part, layers)))
    warn_of_contexts(editor, facts, [batch.prompts for batch in batches])
    warn_of_frames(editor, facts, frames)
    return batches


@dataclass(frozen=True)
class Solving:
    """What is solved for, and how.

    Attributes:
        prefixes: the contexts.
        settings: of the solver.
        site: the output of what.
        keep: whether solved targets are kept on disk, and taken from there.
        workers: the processes that solve.
        frames: the facts' other forms.
        note: what is said of it besides how far it is; None for nothing at all, where the caller says so much.
        position: where the update acts.
    """

    prefixes: Sequence[str]
    settings: ValueSettings
    site: Site
    keep: bool
    workers: Workers = field(default_factory=Workers)
    frames: Frames = NO_FRAMES
    note: str | None = ""
    position: Position = "subject"

    def targets(
        self, lm: LanguageModel, batches: Sequence[Batch], layers: Sequence[int]
    ) -> tuple[dict[int, Tensor], list[dict[str, Any]]]:
        """The facts' target values on the model as it is now, for each layer by itself, and each solve's report.

        Targets are (fact, d_model), float32 on the CPU. The report is that of the last layer, with ``"solved": "kept"``
        where it was taken from the disk.
        """
        state = f"{lm.cache_key} {lm.edits.content_hash()} {lm.dtype}" if self.keep else ""
        entries = [
            [
                {n: self._entry(lm, state, fact, n, batch.prompts.left(place, self.position != "last")) for n in layers}
                for place, fact in enumerate(batch.facts)
            ]
            for batch in batches
        ]
        found = [
            [{n: read(path) if self.keep else None for n, path in paths.items()} for paths in facts]
            for facts in entries
        ]
        missing = [any(one is None for fact in facts for one in fact.values()) for facts in found]
        order = [number for number, lacks in enumerate(missing) if lacks]
        n_facts = sum(len(batches[number].facts) for number in order)
        told = ", ".join(filter(None, (f"Solving for the target values of {counted(n_facts, 'fact')}", self.note)))
        todo = [missing_targets(batches[number], found[number], layers) for number in order]
        for number, solved_now in self._solved(lm, todo, told):
            place = order[number]
            for fact, by_layer in zip(todo[number].places, solved_now, strict=True):
                for layer, one in by_layer.items():
                    found[place][fact][layer] = one
                    if self.keep and one.finite:
                        write(entries[place][fact][layer], one)
        solved = [fact for facts in found for fact in facts]
        values = {n: torch.stack([_known(fact[n]).value for fact in solved]) for n in layers}
        return values, [dict(_known(fact[layers[-1]]).report) for fact in solved]

    def _solved(
        self, lm: LanguageModel, todo: Sequence[MissingTargets], told: str
    ) -> Iterator[tuple[int, list[dict[int, Solved]]]]:
        """What is solved for of each batch, as it comes, with the number of the batch."""
        if not todo:
            return
        work = partial(solve, self.settings, self.site)
        found = self.workers.each(lm, work, todo, _named, passed=(EditRefusedError,))
        yield from found if self.note is None else track(found, told, bar=False, total=len(todo))

    def _entry(self, lm: LanguageModel, state: str, fact: Fact, layer: int, left: Sequence[int] = ()) -> Path:
        asked: dict[str, Any] = {
            "format": self.settings.kept_format,
            "model": state,
            **fact.request,
            "prefixes": list(self.prefixes),
            "settings": dataclasses.asdict(self.settings),
            "site": self.site,
            "layer": layer,
        }
        if forms := self.frames.with_chat(fact, lm.tokenizer):
            asked["frames"] = forms
        if left:  # by the states after all layers that an editor aims at
            asked["left"] = list(left)
        if self.position != "subject":
            asked["position"] = self.position
        key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return cache_folder() / "targets" / key[:2] / f"{key}.safetensors"


@dataclass(frozen=True, eq=False)
class Solved:
    """One fact's target at one layer, (d_model,), float32, and what the solver has to say of it."""

    value: Tensor
    report: dict[str, Any]

    @property
    def finite(self) -> bool:
        """Whether all of it is finite."""
        numbers = [value for value in self.report.values() if isinstance(value, float)]
        return bool(self.value.isfinite().all()) and all(map(math.isfinite, numbers))


@dataclass(frozen=True)
class MissingTargets:
    """What is not solved for yet of a batch: the facts' places there, ids and prompts, and the layers."""

    places: Sequence[int]
    ids: Sequence[str]
    prompts: Prompts
    layers: Sequence[int]


def _named(missing: MissingTargets) -> str:
    return f"facts {', '.join(missing.ids)}"


def missing_targets(
    batch: Batch, found: Sequence[Mapping[int, Solved | None]], layers: Sequence[int]
) -> MissingTargets:
    """What a batch lacks, given what was found of each fact by layer."""
    places = [number for number, fact in enumerate(found) if any(one is None for one in fact.values())]
    prompts = batch.prompts if len(places) == len(found) else batch.prompts.of_facts(places)
    return MissingTargets(places, [batch.facts[place].id for place in places], prompts, layers)


def solve(settings: ValueSettings, site: Site, lm: LanguageModel, missing: MissingTargets) -> list[dict[int, Solved]]:
    """Solves for what a batch lacks: of each fact the targets by layer."""
    layers = missing.layers
    run = run_prompts(lm, missing.prompts, layers, layers if site == "attention_and_ffn" else ())
    found: list[dict[int, Solved]] = [{} for _ in missing.places]
    for layer in layers:
        solved = solve_target_values(lm, run, layer, settings, site)
        for one, value, report in zip(found, solved.values, solved.report(), strict=True):
            one[layer] = Solved(value.float().cpu(), report)
    return found


def write(path: Path, solved: Solved) -> None:
    """Writes an entry, atomically, with a checksum of its content."""
    write_checked(path, {"value": solved.value}, {"report": json.dumps(solved.report)})


def read(path: Path) -> Solved | None:
    """Reads an entry; None where there is none. A damaged one is said by a warning, and counts as none."""
    known = read_kept(path, "the target is solved for again")
    if known is None:
        return None
    found, said = known
    return Solved(found["value"], json.loads(said["report"]) | {"solved": "kept"})


def _known(solved: Solved | None) -> Solved:
    assert solved is not None
    return solved
