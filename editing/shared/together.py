"""What all editors' calls share: facts that cannot all be edited, and a look at the edit that comes of the others."""

import dataclasses
import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from corrigenda import Edit, Fact
from corrigenda.data.requests import reports_together, select_active
from corrigenda.disturbance import noted
from editing.editor import FactRefusedError
from editing.shared.extending import without

M = TypeVar("M", bound=Callable[..., Edit])
EditOf = Callable[[Sequence[int]], Edit]
"""An edit of some of the facts of a call, by their numbers."""

logger = logging.getLogger(__name__)


def together(method: M) -> M:
    """Makes ``edit`` or ``extend`` do all that is here: `note_disturbance`, `deduplicate` and `refused_alone`."""
    return note_disturbance(deduplicate(refused_alone(method)))


def deduplicate(method: M) -> M:
    """Makes ``edit`` or ``extend`` leave out the facts that a later one of the same call supersedes or repeats.

    For editors that solve for all facts at once: they would look for one answer that is two. (Those that take facts one
    after another, GRACE and WISE, follow the same rule in that order themselves.) The rule is that of
    `corrigenda.data.requests`. The edit's origin has all facts, with the reports of `reports_together`; nothing changes
    where every fact is about another thing.
    """

    def edited(facts: Sequence[Fact], edit_of: EditOf) -> Edit:
        now = select_active(facts)
        if len(now.active) < len(facts):
            logger.warning(
                "%d of %d facts are left out of the edit: %d are superseded by later ones, %d are asked for again",
                len(facts) - len(now.active),
                len(facts),
                len(now.overwritten),
                len(now.repeated),
            )
            return _with_all(edit_of(now.active), facts, now.active, reports_together(facts, now))
        return edit_of(now.active)

    return _choosing(method, edited)


def refused_alone(method: M) -> M:
    """Makes ``edit`` or ``extend`` leave out the facts that it refuses by name, and edit the others.

    Such a fact is too long for the model in some context, say; a batch of hundreds does not fail for it. The method
    looks at all facts before it computes anything that takes long. The edit's origin has all facts, with ``refused`` in
    the reports of those that are left out. A fact that is alone is refused as ever.
    """

    def edited(facts: Sequence[Fact], edit_of: EditOf) -> Edit:
        why = dict[int, str]()
        while True:
            kept = [number for number in range(len(facts)) if number not in why]
            try:
                edit = edit_of(kept)
                break
            except FactRefusedError as refusal:
                refused = [number for number in kept if facts[number] is refusal.fact]
                if len(refused) == len(kept) or not refused:
                    raise
                why |= dict.fromkeys(refused, refusal.why)
        if not why:
            return edit
        for number, reason in sorted(why.items()):
            warnings.warn(f"the edit of fact {facts[number].id!r} is refused: {reason}", stacklevel=6)
        reports = [{"refused": why[number]} if number in why else {} for number in range(len(facts))]
        return _with_all(edit, facts, kept, reports)

    return _choosing(method, edited)


def note_disturbance(method: M) -> M:
    """Makes ``edit`` or ``extend`` look at what comes of it: how far it moves other texts (`corrigenda.disturbance`).

    The edit's origin says so in the reports of the call's facts; beyond a bound there is a warning. An edit that goes
    on from an earlier one (``previous``) is looked at as a whole, on the model without that one. Other threads wait
    meanwhile.
    """
    parameters = inspect.signature(method)

    @functools.wraps(method)
    def looking(*args: Any, **kwargs: Any) -> Edit:
        given = parameters.bind(*args, **kwargs).arguments
        lm = given["lm"]
        with lm.alone:
            edit = method(*args, **kwargs)
            with without(lm, given.get("previous")):
                return noted(lm, edit, len(given["facts"]))

    return cast(M, looking)


def _choosing(method: M, edited: Callable[[Sequence[Fact], EditOf], Edit]) -> M:
    """The method, with its facts chosen by `edited`: it is given them, and the method as a function of some of them."""
    parameters = inspect.signature(method)

    @functools.wraps(method)
    def chosen(*args: Any, **kwargs: Any) -> Edit:
        given = parameters.bind(*args, **kwargs)
        facts = given.arguments["facts"]
        if not isinstance(facts, Sequence) or not all(isinstance(fact, Fact) for fact in facts):
            return method(*args, **kwargs)  # which says what is wrong with them

        def edit_of(kept: Sequence[int]) -> Edit:
            given.arguments["facts"] = [facts[number] for number in kept]
            return method(*given.args, **given.kwargs)

        return edited(facts, edit_of)

    return cast(M, chosen)


def _with_all(edit: Edit, facts: Sequence[Fact], kept: Sequence[int], reports: Sequence[Mapping[str, Any]]) -> Edit:
    """An edit of the facts `kept` (numbers) as the edit of all of one call, with what reports get besides."""
    origin, before = edit.origin, len(edit.origin.facts) - len(kept)
    # An editor may have nothing to report.
    made = dict(zip(kept, origin.report[before:], strict=False))
    whole = [{**made.get(number, {}), **report} for number, report in enumerate(reports)]
    earlier = origin.report[:before] or tuple({} for _ in range(before))
    origin = dataclasses.replace(origin, facts=(*origin.facts[:before], *facts), report=(*earlier, *whole))
    return dataclasses.replace(edit, origin=origin)
