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


LARGE = 1e18
"""The square of a norm below this does not overflow in float32."""


def require_factors(kind: str, what: str, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """A, (d_ffn, rank), and B, (rank, d_model), of a change A B of a kind of edit, in float32 on the CPU.

    Raises:
        EditRefusedError: they, or their product, are not finite.
        ValueError: they do not multiply.
    """
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise ValueError(f"{what}: factors of shapes {tuple(left.shape)} and {tuple(right.shape)} do not multiply")
    left, right = left.detach().float().cpu(), right.detach().float().cpu()
    require_finite(kind, {f"{what}: A": left, f"{what}: B": right})
    if float(left.norm()) * float(right.norm()) > LARGE:  # else their product cannot overflow
        require_finite(kind, {f"{what}: A B": left @ right})
    return left, right


def require_finite(kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuses tensors of an edit, by name, that hold NaN or infinities: applied, they would wreck the model.

    So would numbers so large that their norm overflows in float32; they count as infinite. Raises EditRefusedError,
    which names the tensor.
    """
    for name, tensor in tensors.items():
        if bool(tensor.norm().isfinite()):  # one pass, and then every number is finite
            continue
        n_bad = int((~tensor.isfinite()).sum())
        said = f"{n_bad} of the {tensor.numel()} numbers of {name!r} are NaN or infinite"
        if not n_bad:
            said = f"the norm of {name!r} is infinite (numbers up to {float(tensor.abs().max()):.3g})"
        raise EditRefusedError(f"the {kind} edit is not finite: {said}")
