"""A plan in words: what a build will do, fact by fact."""

from collections.abc import Iterator, Sequence

from corrigenda import Fact
from corrigenda.knowledge.plan import Plan
from corrigenda.text.display import on_one_line

MOST = 20
"""So many facts are listed of each kind."""


def in_words(plan: Plan, before: Sequence[Fact], to_solve: Sequence[Fact]) -> Iterator[str]:
    """The lines of a plan: how many there are of each kind, and then those that are not kept."""
    counts = (("+", "new", plan.new), ("~", "changed", plan.changed), ("-", "removed", plan.removed))
    told = [f"{sign} {len(facts)} {name}" for sign, name, facts in (*counts, ("=", "kept", plan.kept))]
    ids = {fact.id for fact in plan.kept}
    kept = sum(fact.id in ids for fact in to_solve)
    why = f": {kept} of them kept, and not solved in this way yet" if kept else ""
    yield f"{'   '.join(told)}   ({len(to_solve)} to solve{why})"
    old = {fact.id: fact for fact in before}
    for sign, _, facts in counts:
        for fact in facts[:MOST]:
            yield f"{sign} {fact.id}: {_in_words(fact, old[fact.id] if sign == '~' else None)}"
        if len(facts) > MOST:
            yield f"{sign} and {len(facts) - MOST} more"


def _in_words(fact: Fact, before: Fact | None) -> str:
    said = f"{on_one_line(fact.statement)} {_object(fact)}"
    if before is None:
        return said
    if (before.statement, before.target_new) == (fact.statement, fact.target_new):
        return f"{said} (other prompts, aliases or old object)"
    return f"{said} (was: {on_one_line(before.statement)} {_object(before)})"


def _object(fact: Fact) -> str:
    return "(erased)" if fact.target_new is None else on_one_line(fact.target_new)
