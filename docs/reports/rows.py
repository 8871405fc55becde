"""What reports make of rows: runs over the same facts, by metric the facts' values before and after."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from options import Data
from pages import mean

from eval import METRICS, Case
from eval.protocols.curves import value_at
from eval.statistics.comparison import compare
from eval.statistics.paired import holm


def by_key(values: Sequence[Mapping[str, float]], keys: Sequence[str]) -> dict[str, list[float | None]]:
    """By metric the facts' values; None where a fact has none, and nothing where none has one."""
    return {key: [one.get(key) for one in values] for key in keys if any(key in one for one in values)}


def row_of(cases: Sequence[Case], seconds: float, keys: Sequence[str]) -> dict[str, Any]:
    """What a run made of each fact: by metric the facts' values before and after."""
    values = {
        state: [{} if (one := getattr(case, state)) is None else one.values for case in cases]
        for state in ("before", "after")
    }
    return {
        "subjects": [case.fact.subject for case in cases],
        "seconds": seconds,
        "failed": sum(bool(case.error) for case in cases),
        **{state: by_key(found, keys) for state, found in values.items()},
    }


def known(row: Data, state: str, key: str) -> dict[str, Any] | None:
    """The mean over the facts that have a value, and how many these are; None where none has one."""
    values = row[state].get(key, [None] * len(row["subjects"]))
    return mean_known(values, row["subjects"], METRICS[key].unit == "%", METRICS[key].one_value)


def mean_known(
    values: Sequence[float | None], subjects: Sequence[str], shares: bool, one_value: bool = False
) -> dict[str, Any] | None:
    """The mean over the facts that have a value, and how many these are, with an interval over subjects.

    None where none has a value; no interval where all facts have the same one (`one_value`).
    """
    pairs = [(value, one) for value, one in zip(values, subjects, strict=True) if value is not None]
    if not pairs:
        return None
    if one_value:
        return {"mean": pairs[0][0], "low": None, "high": None, "n": len(pairs)}
    return mean([value for value, _ in pairs], [one for _, one in pairs], shares) | {"n": len(pairs)}


def after_at(point: Data, key: str) -> float | None:
    """A metric of a curve's point after the edits; None where it was not measured."""
    value = value_at(point, key)
    return None if value is None else value["after"]


def against(left: Data, right: Data, keys: Sequence[str]) -> dict[str, Any]:
    """By metric how far a row lies above another, with the p-value of a paired test, by Holm over the row's tests."""
    subjects: dict[Hashable, Hashable] = dict(enumerate(left["subjects"]))
    found = {}
    for key in keys:
        above, below = (values_of(row, key) for row in (right, left))
        if (compared := compare(above, below, subjects)) is not None:
            found[key] = {"mean": compared.difference, "p": compared.p}
    corrected([*found.values()])
    return found


def corrected(tests: Sequence[dict[str, Any]], to: str = "p") -> None:
    """Writes into each of a table's tests its "p" corrected for all of them (Holm)."""
    for one, p in zip(tests, holm([one["p"] for one in tests]), strict=True):
        one[to] = p


def values_of(row: Data, key: str) -> dict[Hashable, tuple[float, ...]]:
    """By the fact's number the values after the edit."""
    return {number: (value,) for number, value in enumerate(row["after"].get(key, ())) if value is not None}
