"""What an editor makes of the entries of a knowledge base: `ClosedFormMerge` and `ScopedMerge`.

By its closed form an editor merges them into the weights. MEMIT's is V = A^-1 B with A = lambda C + sum k k^T and B =
lambda C V0 + sum k v^T (a linear memory, as in Larimar, Das et al. 2024; lambda C as in Meng et al. 2023, eq. 14),
AlphaEdit's the same in the null space, ROME's meets the entries exactly, EMMET's but for its `eps`. Entries are solved
for in the order of the facts' ids; several layers are written from the bottom, each measured anew. So the edit depends
on the list alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel, ScopedEdit
from corrigenda.knowledge.entries import Entry, by_layer, residuals_of
from corrigenda.moments.experts import Moment
from editing.knowledge.solving import EntrySolver
from editing.locate_then_edit.closed_form import ClosedForm
from editing.locate_then_edit.guards import cosines_between, name_alike, warn_of_load
from editing.locate_then_edit.joined import ClosedFormEdit, finish, unedited
from editing.locate_then_edit.least_squares import Factors
from editing.locate_then_edit.writing import Problem
from editing.memory_based.scoped import Scoped


@dataclass(frozen=True)
class ClosedFormMerge:
    """Compiles entries into a change of the layers' values; a `corrigenda.knowledge.entries.Compiler`.

    Attributes:
        editor: whose closed form it is.
    """

    editor: ClosedForm

    def __call__(self, lm: LanguageModel, facts: Sequence[Fact], entries: Sequence[Entry]) -> ClosedFormEdit:
        """The edit; of each fact it reports which others have nearly the same key (``"alike"``; empty for none).

        Raises:
            EditRefusedError: the change of a layer is out of all proportion.
            ValueError: C is singular, and there is no ridge; or entries were solved with other settings.
        """
        EntrySolver(self.editor).require_own(lm, entries)
        of_layer = by_layer(entries)
        if len(of_layer) > 1:
            return self.editor.merged(lm, facts, lambda layer: _residuals(lm, of_layer[layer])[1])
        moments: Mapping[int, Moment] = self.editor.moments(lm) if of_layer else {}
        report: list[dict[str, Any]] = [{"alike": []} for _ in facts]
        factors = dict[int, Factors]()
        for layer, found in of_layer.items():
            keys, residuals = _residuals(lm, found)
            values, most, advice = unedited(lm, layer), self.editor.most_per_coefficient, self.editor.when_crowded
            warn_of_load(self.editor.name, len(found), len(values), most, advice)
            self._name_alike(moments[layer], facts, keys, report)
            solution = self.editor.solution(Problem(moments[layer], keys.float(), residuals, None, None))
            factors[layer] = self.editor.after.of_update(solution.factors, values)
        n = len(facts)
        return finish(lm, self.editor, None, factors, facts, report, None, n, self.editor.refuse_norm)

    def _name_alike(
        self, moment: Moment, facts: Sequence[Fact], keys: Tensor, report: Sequence[dict[str, Any]]
    ) -> None:
        """Names the facts of nearly the same key, by a warning and in their reports."""
        directions = moment.solve(keys, self.editor.ridge * moment.scale)
        name_alike(
            self.editor.name, facts, cosines_between(keys, keys, directions, directions), self.editor.alike, report
        )


@dataclass(frozen=True)
class ScopedMerge:
    """Compiles entries into a `ScopedEdit`, by an editor with a gate; a `corrigenda.knowledge.entries.Compiler`."""

    editor: Scoped

    def __call__(self, lm: LanguageModel, facts: Sequence[Fact], entries: Sequence[Entry]) -> ScopedEdit:
        """The edit; the keys of its gate are taken of the facts' prompts.

        Raises ValueError: entries were solved with other settings.
        """
        EntrySolver(self.editor).require_own(lm, entries)
        asked = {fact.id: fact for fact in facts}
        width = lm.memory(self.editor.resolved_layer(lm)).d_model
        values = _residuals(lm, entries)[1] if entries else torch.zeros(0, width, dtype=torch.float64)
        return self.editor.attach(lm, [asked[entry.fact] for entry in entries], values, None)


def _residuals(lm: LanguageModel, entries: Sequence[Entry]) -> tuple[Tensor, Tensor]:
    """The keys of one layer's entries, and by how much what the unedited model answers to them is to change."""
    return residuals_of(entries, unedited(lm, entries[0].layer))
