"""`TrainingFacts`: facts that an editor learns from beside those that it edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corrigenda import Fact
from corrigenda.data import FactSet, read_facts
from corrigenda.data.parts import Identified, overlaps
from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, Count, checked
from editing.editor import FactRefusedError


@dataclass(frozen=True)
@checked
class TrainingFacts:
    """Where they are, read as the facts of a run are.

    Attributes:
        path: a file, a folder or a data set of the hub; None for none.
        schema: of its records.
        split: of a folder or the hub.
        offset: so many are passed over.
        limit: so many are taken; None: all.
    """

    path: str | None = None
    schema: str = "auto"
    split: str = "train"
    offset: Count = 0
    limit: AtLeastOne | None = None

    def read(self, editor: str, setting: str) -> FactSet:
        """The facts.

        Args:
            editor: which editor asks for them, for messages.
            setting: the name under which it has this.

        Raises:
            SettingsError: none are named.
            ValueError: as `read_facts` says.
        """
        if self.path is None:
            raise SettingsError(
                f"{editor} learns from facts that are not edited, and none are named: give editor.{setting}.path=FILE"
            )
        return read_facts(
            self.path, schema=self.schema, split=self.split, limit=self.limit, offset=self.offset, on_error="skip"
        )


def require_unseen(editor: str, training: Sequence[Identified], facts: Sequence[Fact]) -> None:
    """Refuses to edit what an editor learned from.

    Raises:
        FactRefusedError: a fact has the id, or is about the subject, of one of the training facts.
    """
    for fact, what in overlaps(training, facts):
        raise FactRefusedError(
            fact,
            f"{what} ({fact.id if what == 'the id' else fact.subject!r}) is among the {len(training)} facts that "
            f"{editor} learns from; name others (path, offset, limit)",
        )
