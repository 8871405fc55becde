"""`Origin`: where an edit comes from; and that what an editor made can be applied at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from corrigenda.errors import EditRefusedError
from corrigenda.facts import Fact
from corrigenda.models.bare import BareModel


@dataclass(frozen=True)
class Origin:
    """Where an edit comes from.

    Attributes:
        model: the model's name.
        fingerprint: of the unedited model's weights (`LanguageModel.fingerprint`).
        editor: the editor's name.
        settings: its hyper-parameters.
        facts: the requested changes.
        report: for each fact, what the editor has to say about its edit (losses, norms, warnings).
    """

    model: str
    fingerprint: str
    editor: str
    settings: dict[str, Any] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    report: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, lm: BareModel, editor: Any, facts: Sequence[Fact], report: Sequence[dict[str, Any]] = ()) -> Origin:
        """The origin of an edit that an editor (a dataclass with a `name`) makes on a model."""
        return cls(lm.name, lm.fingerprint, editor.name, dataclasses.asdict(editor), tuple(facts), tuple(report))

    @property
    def changes(self) -> list[str]:
        """Of each fact a line for a person: what is asked, the old object and the new one."""
        found = []
        for fact in self.facts:
            old = fact.target_true if fact.target_true is not None else "(nothing)"
            new = fact.target_new if fact.target_new is not None else "(erased)"
            found.append(f"{fact.statement}: {old} -> {new}")
        return found


def require_finite(kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuses tensors of an edit that hold NaN or infinities: applied, they would wreck the model.

    So would numbers so large that their norm overflows in float32; they count as infinite.

    Args:
        kind: of the edit.
        tensors: by what messages call them.

    Raises:
        EditRefusedError: one is not finite; the message names it.
    """
    for name, tensor in tensors.items():
        if bool(tensor.norm().isfinite()):  # one pass, and then every number is finite
            continue
        n_bad = int((~tensor.isfinite()).sum())
        said = f"{n_bad} of the {tensor.numel()} numbers of {name!r} are NaN or infinite"
        if not n_bad:
            said = f"the norm of {name!r} is infinite (numbers up to {float(tensor.abs().max()):.3g})"
        raise EditRefusedError(f"the {kind} edit is not finite: {said}")
