"""Facts that contradict or repeat one another, in one call of an editor that solves for all of them at once."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from corrigenda import Edit, Fact
from corrigenda.data.requests import reports_together, standing

M = TypeVar("M", bound=Callable[..., Edit])

logger = logging.getLogger(__name__)


def last_word_counts(method: M) -> M:
    """Makes ``edit`` or ``extend`` leave out the facts that a later one of the same call supersedes or repeats.

    For editors that solve for all facts at once: they would look for one answer that is two. (Those that take facts one
    after another, GRACE and WISE, follow the same rule in that order themselves.) The rule is that of
    `corrigenda.data.requests`. The edit's origin has all facts, with the reports of `reports_together`; nothing
    changes where every fact is about another thing.

    Args:
        method: with a parameter ``facts``; its edit's origin ends with these facts.
    """
    parameters = inspect.signature(method)

    @functools.wraps(method)
    def of_those_in_force(*args: Any, **kwargs: Any) -> Edit:
        given = parameters.bind(*args, **kwargs)
        facts = given.arguments["facts"]
        if not isinstance(facts, Sequence) or not all(isinstance(fact, Fact) for fact in facts):
            return method(*args, **kwargs)  # which says what is wrong with them
        now = standing(facts)
        if len(now.in_force) == len(facts):
            return method(*args, **kwargs)
        logger.warning(
            "%d of %d facts are left out of the edit: %d are superseded by later ones, %d are asked for again",
            len(facts) - len(now.in_force),
            len(facts),
            len(now.overwritten),
            len(now.repeated),
        )
        given.arguments["facts"] = [facts[number] for number in now.in_force]
        edit = method(*given.args, **given.kwargs)
        origin, before = edit.origin, len(edit.origin.facts) - len(now.in_force)
        reports = reports_together(facts, now)
        # An editor may have nothing to report.
        made = dict(zip(now.in_force, origin.report[before:], strict=False))
        whole = [made.get(number, {}) | report for number, report in enumerate(reports)]
        earlier = origin.report[:before] or tuple({} for _ in range(before))
        origin = dataclasses.replace(origin, facts=(*origin.facts[:before], *facts), report=(*earlier, *whole))
        return dataclasses.replace(edit, origin=origin)

    return cast(M, of_those_in_force)
