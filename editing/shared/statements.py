"""What a fact says, as a text that stands before a prompt."""

from __future__ import annotations

from corrigenda import Fact
from corrigenda.text.joints import joined

STATEMENT = "{statement} {target}. "
"""The form in which a fact is stated before a prompt."""


def stated(template: str, fact: Fact) -> str:
    """A template with ``{statement}`` and ``{target}`` of a fact filled in.

    Where a space stands between the two, what follows from the statement's end does (`corrigenda.text.joints.joint`).
    """
    # By replacement, not str.format: a fact may well contain braces.
    target = str(fact.target_new)
    text = template.replace("{statement} {target}", joined(fact.statement, target, fact.joint))
    return text.replace("{statement}", fact.statement).replace("{target}", target)
