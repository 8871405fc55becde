"""The verification report, as plain JSON values: fact by fact, what collides, and what changed since the last one."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from corrigenda import Fact
from corrigenda.data.requests import ActiveRequests, select_active
from corrigenda.knowledge.plan import Plan
from eval.evaluation import Evaluation
from eval.verification.verify import Verified

FORMAT = 1
"""The version of the report."""


def report_of(
    facts: Sequence[Fact],
    verified: Sequence[Verified],
    made: Sequence[Mapping[str, Any]],
    plan: Plan,
    last: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The report on a list, of which `verified` are in force; `last` is the last one, `plan` in what the list differs.

    `made` is what the edit reports of each of `verified`; its ``"alike"`` names facts of nearly the same key, and is
    missing where keys were not compared. ``metrics`` are as `Evaluation.metrics` has them; ``facts``, a row each;
    ``collisions``, pairs of facts, with ``keys_compared``, whether facts of nearly the same key would be among them;
    ``since``, what changed since the last report.
    """
    now = select_active(facts)
    by_id = {one.case.fact.id: one for one in verified}
    alike = {one.case.fact.id: list(said.get("alike", ())) for one, said in zip(verified, made, strict=True)}
    held = {} if last is None else {row["id"]: row["holds"] for row in last["facts"]}
    new, changed = ({fact.id for fact in facts} for facts in (plan.new, plan.changed))
    rows = []
    for number, fact in enumerate(facts):
        row: dict[str, Any] = {
            "id": fact.id,
            "subject": fact.subject,
            "statement": fact.statement,
            "target_new": fact.target_new,
            "target_true": fact.target_true,
            "since": "new" if fact.id in new else "changed" if fact.id in changed else "kept",
            "held_before": held.get(fact.id),
        }
        rows.append(row | _said(number, now, facts, by_id, alike))
    return {
        "format": FORMAT,
        "n_facts": len(facts),
        "n_in_force": len(verified),
        "n_holding": sum(one.holds for one in verified),
        "metrics": Evaluation(tuple(one.case for one in verified)).metrics,
        "collisions": _collisions(facts, now, alike),
        "keys_compared": all("alike" in said for said in made),
        "since": _since(plan, rows, last is None),
        "facts": rows,
    }


def _said(
    number: int,
    now: ActiveRequests,
    facts: Sequence[Fact],
    by_id: Mapping[str, Verified],
    alike: Mapping[str, list[str]],
) -> dict[str, Any]:
    """What there is to say of one fact; of one that is not in force, what stands in its place."""
    if number in now.last:
        state = "superseded" if number in now.overwritten else "repeated"
        return {"state": state, "by": facts[now.last[number]].id, "holds": None}
    one = by_id[facts[number].id]
    after = one.case.after
    [prompt] = _answers(one, "prompt") or [{}]
    elsewhere = {record.prompt for record in after.elsewhere() if (record.preserved, record.says_new) != (None, None)}
    return {
        "state": "in force",
        "holds": one.holds,
        "error": one.case.error,
        "now": prompt.get("now"),
        "before": prompt.get("before"),
        "paraphrases": _answers(one, "paraphrases"),
        "next_to_it": len(elsewhere),
        "changed_next_to_it": [asdict(changed) for changed in one.changed],
        "alike": alike[facts[number].id],
    }


def _answers(one: Verified, kind: str) -> list[dict[str, Any]]:
    before = one.case.before
    old = {} if before is None else {record.prompt: record.answer for record in before.scored(kind)}
    return [
        {"prompt": record.prompt, "before": old.get(record.prompt), "now": record.answer, "holds": one.marked(record)}
        for record in one.case.after.scored(kind)
    ]


def _collisions(facts: Sequence[Fact], now: ActiveRequests, alike: Mapping[str, list[str]]) -> list[dict[str, str]]:
    """Facts that get into each other's way: one stands in another's place, or both have nearly the same key."""
    found = []
    for number, last in sorted(now.last.items()):
        what = "superseded by" if number in now.overwritten else "repeated by"
        found.append({"fact": facts[number].id, "what": what, "other": facts[last].id})
    pairs = {tuple(sorted((fact, other))) for fact, others in alike.items() for other in others}
    return found + [{"fact": one, "what": "has nearly the key of", "other": other} for one, other in sorted(pairs)]


def _since(plan: Plan, rows: Sequence[Mapping[str, Any]], first: bool) -> dict[str, Any]:
    """What changed since the last report; facts that are new or changed are neither gained nor lost."""
    kept = [row for row in rows if row["since"] == "kept" and row["held_before"] is not None]
    return {
        "first": first,
        "new": [fact.id for fact in plan.new],
        "changed": [fact.id for fact in plan.changed],
        "removed": [
            {"id": fact.id, "statement": fact.statement, "target_new": fact.target_new} for fact in plan.removed
        ],
        "kept": len(plan.kept),
        "gained": [row["id"] for row in kept if row["holds"] and not row["held_before"]],
        "lost": [row["id"] for row in kept if row["holds"] is False and row["held_before"]],
    }
