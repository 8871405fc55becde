"""`Entry`: what was solved for one fact at one layer; and who solves entries, and who makes an edit of them."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from corrigenda.edits.edit import Edit
from corrigenda.edits.origin import require_finite
from corrigenda.facts import Fact
from corrigenda.language_model import LanguageModel
from corrigenda.settings.checked import Count, check_value


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, eq=False)
class Entry:
    """A fact, solved for at one layer: to the key k*, the layer shall answer with the value v*.

    Attributes:
        fact: the fact's id.
        layer: which layer, counted from the bottom.
        key: k*, (d_ffn,): the coefficients at the subject's last token, on the unedited model; float32 on the CPU.
        value: v*, (d_model,): what k* V is to be, without the bias b2; float32 on the CPU.
        fingerprint: of the unedited weights that it was solved on.
        settings: of the solver, as plain JSON values.
        made: when, UTC, ISO 8601.

    Raises:
        EditRefusedError: the key or the value is not finite.
        ValueError: they are no vectors, or the settings cannot be written as JSON.
    """

    fact: str
    layer: int
    key: Tensor
    value: Tensor
    fingerprint: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    made: str = field(default_factory=now)

    def __post_init__(self) -> None:
        check_value("Entry", "layer", self.layer, Count)
        for name in ("key", "value"):
            vector = getattr(self, name).detach().float().cpu().contiguous()
            if vector.ndim != 1 or not len(vector):
                raise ValueError(f"the {name} of the entry of fact {self.fact!r} has the shape {tuple(vector.shape)}")
            object.__setattr__(self, name, vector)
        require_finite("knowledge-base", {f"{name} of {self.fact}": getattr(self, name) for name in ("key", "value")})
        _ = self.settings_json

    @property
    def settings_json(self) -> str:
        """The settings as canonical JSON: equal texts for equal settings."""
        return canonical(self.settings)


def canonical(settings: Mapping[str, Any]) -> str:
    """Settings as canonical JSON: equal texts for equal settings."""
    return json.dumps(dict(settings), sort_keys=True, separators=(",", ":"), allow_nan=False)


class Solver(Protocol):
    """Solves facts on a model as it is without edits; an editor gives one."""

    def __call__(self, lm: LanguageModel, facts: Sequence[Fact]) -> Sequence[Entry]:
        """One entry for each fact and each layer that is to answer.

        What it gives for a fact may not depend on the facts beside it.
        """
        ...


class Compiler(Protocol):
    """Makes an edit of the entries that are in force; `corrigenda.knowledge.attached.Attached` is one."""

    def __call__(self, lm: LanguageModel, facts: Sequence[Fact], entries: Sequence[Entry]) -> Edit:
        """The edit. Facts, and within a layer entries, come in the order of the facts' ids.

        It may depend on nothing but its arguments: the same facts must give the same bits.
        """
        ...


def request_hash(fact: Fact) -> str:
    """A hash of what a fact asks for: what was solved for it is of no use once it is another."""
    asked = json.dumps(list(fact.request.values()))
    return hashlib.sha256(asked.encode()).hexdigest()


def solved_for(fact: Fact, settings: str) -> str:
    """A hash of what an entry of a solver with such settings (`canonical`) is solved for.

    That is the request; and where a fact's other forms count (``frames``), what they are drawn by: its relation, and
    its paraphrases, which are left to the evaluation.
    """
    forms = json.dumps([fact.relation, fact.paraphrases]) if '"frames":' in settings else ""
    return hashlib.sha256(f"{request_hash(fact)}{forms}".encode()).hexdigest()


def require_fit(lm: LanguageModel, facts: Sequence[Fact], entries: Sequence[Entry]) -> None:
    """Refuses what a solver gave where it is not what was asked for.

    Raises:
        ValueError: an entry of another fact, of other weights or of a wrong width; two for one layer; none for a fact.
    """
    wanted = {fact.id for fact in facts}
    times = Counter((entry.fact, entry.layer) for entry in entries)
    for entry in entries:
        if entry.fact not in wanted:
            raise ValueError(f"the solver gave an entry for fact {entry.fact!r}, which it was not asked for")
        if times[entry.fact, entry.layer] > 1:
            raise ValueError(f"the solver gave two entries for fact {entry.fact!r} at layer {entry.layer}")
        if entry.fingerprint != lm.fingerprint:
            raise ValueError(
                f"the entry of fact {entry.fact!r} was solved on the weights {entry.fingerprint[:12]}, and {lm.name} "
                f"has {lm.fingerprint[:12]}"
            )
        memory = lm.memory(entry.layer)
        found, expected = (len(entry.key), len(entry.value)), (memory.d_ffn, memory.d_model)
        if found != expected:
            raise ValueError(
                f"the entry of fact {entry.fact!r} has a key and a value of {found} numbers, layer {entry.layer} of "
                f"{lm.name} {expected}"
            )
    lacking = sorted(wanted - {entry.fact for entry in entries})
    if lacking:
        raise ValueError(
            f"the solver gave no entry for {len(lacking)} of {len(wanted)} facts; the first: {lacking[0]!r}"
        )


def by_layer(entries: Sequence[Entry]) -> dict[int, list[Entry]]:
    """The entries of each layer."""
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.layer, []).append(entry)
    return found


def solve_facts(
    lm: LanguageModel | None, solver: Solver | None, facts: Sequence[Fact]
) -> list[tuple[Fact, list[Entry]]]:
    """What a solver makes of facts, each with its entries, checked; nothing without a solver.

    Raises:
        ValueError: only one of model and solver was given, or what the solver gave does not fit.
    """
    if (lm is None) != (solver is None):
        raise ValueError("a solver needs a model, and a model a solver: give both lm and solver, or neither")
    if lm is None or solver is None or not facts:
        return []
    with lm.edits.suspended():
        entries = solver(lm, facts)
        require_fit(lm, facts, entries)
    by_fact: dict[str, list[Entry]] = {}
    for entry in entries:
        by_fact.setdefault(entry.fact, []).append(entry)
    return [(fact, by_fact[fact.id]) for fact in facts]


def require_one_setting(entries: Sequence[Entry], path: Path) -> None:
    """Refuses entries that were solved with different settings (ValueError); `path` is the base's, for the message."""
    settings = {entry.settings_json: entry.fact for entry in entries}
    if len(settings) > 1:
        (one, fact), (other, another) = list(settings.items())[:2]
        raise ValueError(
            f"{path}: facts {fact!r} and {another!r} were solved with different settings ({one:.200} and "
            f"{other:.200}): solve(..., anew=True) solves all with the same"
        )


def residuals_of(entries: Sequence[Entry], untouched: Tensor) -> tuple[Tensor, Tensor]:
    """The keys K, (n, d_ffn), of one layer's entries, and what they lack of their values, R = v - k V0, (n, d_model).

    In float64; `untouched` is V0, the layer's values without edits, (d_ffn, d_model).
    """
    K, values = (torch.stack(vectors).double() for vectors in zip(*((e.key, e.value) for e in entries), strict=True))
    return K, values - K @ untouched.double().cpu()
