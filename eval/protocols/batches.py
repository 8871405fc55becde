"""What a batch of a sequence asks of the editor, by the rule for requests: inside the batch and across batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corrigenda import Fact
from corrigenda.data.requests import SUPERSEDED_BY, history, reports_together, select_active
from eval.evaluation import Case


@dataclass(frozen=True)
class BatchRequests:
    """The facts of one batch, by what becomes of them.

    Attributes:
        facts: those that the editor is asked for, in order.
        left_to: for each of the others, by its id, what is reported of it: that a later one of the batch stands in its
            place, or that it repeats what an earlier batch made true.
        relations: for each of the facts asked for, by its id, what it is to one of the batch that it stands for.
    """

    facts: tuple[Fact, ...]
    left_to: Mapping[str, dict[str, Any]]
    relations: Mapping[str, dict[str, Any]]


def asked_of(facts: Sequence[Fact], begin: int, end: int, cases: Mapping[str, Case]) -> BatchRequests:
    """What the batch of requests begin .. end-1 asks for, after the cases, by id, of the facts before it.

    In a batch only the last request on each thing is made. One that repeats what an earlier batch made true is not made
    again; one that repeats what failed is.
    """
    batch = list(facts[begin:end])
    now = select_active(batch)
    together = reports_together(batch, now)
    made = [batch[number] for number in now.active]
    earlier = history([*facts[:begin], *made])[begin:]
    asked, left_to = list[Fact](), dict[str, dict[str, Any]]()
    for number in (*now.overwritten, *now.repeated):
        left_to[batch[number].id] = together[number]
    for fact, relation in zip(made, earlier, strict=True):
        repeated = relation.get("repeats")
        if repeated is not None and _holds(cases[facts[repeated].id]):
            left_to[fact.id] = {"repeats": facts[repeated].id}
        else:
            asked.append(fact)
    relations = {batch[number].id: together[number] for number in now.active if together[number]}
    return BatchRequests(tuple(asked), left_to, relations)


def _holds(case: Case) -> bool:
    """Whether a request was made true, by its own edit or by that of one that asks for the same."""
    return not case.error and SUPERSEDED_BY not in (case.edit or {})
