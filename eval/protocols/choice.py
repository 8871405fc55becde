"""Which facts a checkpoint scores, and which of these are the first and the latest."""

import hashlib
from collections.abc import Sequence
from typing import Any

from corrigenda import Fact
from eval.protocols.settings import SequentialSettings


def chosen(facts: Sequence[Fact], active: Sequence[int], settings: SequentialSettings) -> tuple[int, ...]:
    """The numbers of the facts that are scored, in order: at most `settings.scored` of those in force."""
    most = settings.scored
    if most is None or len(active) <= most:
        return tuple(active)
    if settings.scored_are == "ends":
        return (*active[: most // 2], *active[len(active) - (most - most // 2) :])

    def drawn(number: int) -> bytes:
        # By each fact's own hash: who is drawn stays drawn while others come, but for those that these take out.
        return hashlib.sha256(f"{settings.seed}\0{facts[number].id}".encode()).digest()

    return tuple(sorted(sorted(active, key=drawn)[:most]))


def said_of(n_scored: int, n_in_force: int, settings: SequentialSettings) -> dict[str, Any]:
    """What a point of the curve says of the facts that it is of; nothing where all of them were scored."""
    if n_scored == n_in_force:
        return {}
    which = "the first and the latest half" if settings.scored_are == "ends" else f"a sample, seed {settings.seed}"
    return {"scored": {"n": n_scored, "of": n_in_force, "which": which}}


def first_and_latest(numbers: Sequence[int], t: int, ends: int) -> dict[str, tuple[int, ...]]:
    """By part the numbers of the first and of the latest so many requests, out of some of the first `t`.

    Empty where `t` is not above `ends`: then each part is all of them.
    """
    if t <= ends:
        return {}
    return {
        "first": tuple(number for number in numbers if number < ends),
        "latest": tuple(number for number in numbers if number >= t - ends),
    }
