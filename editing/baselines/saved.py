"""The edits of an earlier run, taken up again: measured otherwise, or as the measure of a random update's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.errors import DamagedFileError
from corrigenda.facts import as_facts
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import checked
from corrigenda.system.plain_data import read_json
from editing.editor import EditRefusedError
from editing.registry import register

KINDS = (
    "corrigenda.edits.added_neurons",
    "corrigenda.edits.attached",
    "corrigenda.edits.blocks",
    "corrigenda.edits.codebook",
    "corrigenda.edits.coefficients",
    "corrigenda.edits.context",
    "corrigenda.edits.counterfactual",
    "corrigenda.edits.experts",
    "corrigenda.edits.hopfield",
    "corrigenda.edits.low_rank",
    "corrigenda.edits.retrieval",
    "corrigenda.edits.masked_memory",
    "corrigenda.edits.scoped",
    "corrigenda.edits.side_memory",
    "corrigenda.edits.values",
)
"""The kinds of edits that a run may have saved. Named here, they count in a run's id (`corrigenda.runs.sources`)."""


@register(
    "saved",
    aim="the edits of an earlier run, measured in another way",
    space="it makes no edit",
    unranked="has no edits of its own",
)
@dataclass(frozen=True)
@checked
class Saved:
    """Makes no edit of its own but gives those that a run has saved.

    Attributes:
        run: the folder of a run with ``save_edits=true``; any folder with edits below its ``edits/``.

    Raises:
        DamagedFileError: the description of one is damaged.
        FileNotFoundError: there are no edits.
    """

    name: ClassVar[str] = "saved"

    run: str

    def __post_init__(self) -> None:
        if not self._folders:
            raise FileNotFoundError(f"saved: {self.run} holds no edits; name the folder of a run with save_edits=true")

    @one_thread
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> Edit:
        """The edit that the run has of exactly these facts, in this order.

        Raises:
            EditRefusedError: there is none (the run failed at them, or saved no edits).
        """
        folder = self._folders.get(tuple(fact.id for fact in as_facts(self.name, facts)))
        if folder is None:
            asked = ", ".join(fact.id for fact in facts[:5]) + (", ..." if len(facts) > 5 else "")
            raise EditRefusedError(f"saved: {self.run} has {len(self._folders)} edits, none of {asked}")
        edit = Edit.load(folder)
        wanted = {fact.id: fact.to_dict() for fact in facts}
        for fact in edit.origin.facts:
            if fact.to_dict() != wanted[fact.id]:
                raise EditRefusedError(f"saved: {folder} edits another fact with the id {fact.id!r}")
        return edit

    @cached_property
    def _folders(self) -> dict[tuple[str, ...], Path]:
        """Where the edits lie, by the ids of their facts."""
        found = {}
        for path in sorted((Path(self.run) / "edits").glob("*/edit.json")):
            try:
                ids = tuple(record["id"] for record in read_json(path)["origin"]["facts"])
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedFileError(f"saved: {path} is damaged ({error!r}): make the run again") from None
            found[ids] = path.parent
        return found
