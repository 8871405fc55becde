"""Probes out of the ways in which benchmarks write prompts and their right answers."""

import re
from collections.abc import Iterable

from corrigenda.data.fields import Record, as_target, lookup, text, typed_repr
from corrigenda.errors import FactError
from corrigenda.facts import Probe
from corrigenda.text.display import unspaced


def answers_in(value: object, path: str) -> tuple[str, ...]:
    """The answers in a string, a number, a list of them, or a list of lists of them, without the blank ones.

    A list of lists holds one list for each right answer, with its other names; any of them counts.

    Raises:
        FactError: there is something else in it.
    """
    if value is None:
        return ()
    if isinstance(value, int) and not isinstance(value, bool):
        return (str(value),)
    if isinstance(value, str):
        return (as_target(value),) if value.strip() else ()
    if isinstance(value, (list, tuple)):
        return tuple(answer for i, part in enumerate(value) for answer in answers_in(part, f"{path}[{i}]"))
    raise FactError(path, f"must be an answer or a list of answers, got {typed_repr(value)}")


def probe(prompt: str, answers: Iterable[str], group: str = "") -> tuple[Probe, ...]:
    """One probe, or none where there is no answer: what cannot be scored is left out.

    The first answer is the one that is scored under teacher forcing; each of the others counts as right in free
    generation, unless it is a single letter of a script with spaces ("C" for carbon), which would be found in almost
    any text.
    """
    first, *others = (*dict.fromkeys(answers), "")
    if not first:
        return ()
    aliases = tuple(other for other in others if len(other) > 1 or other.isdigit() or unspaced(other))
    return (Probe(prompt, first, aliases, group),)


def hop(record: Record) -> tuple[Probe, ...]:
    """The question one hop further that Yao et al. 2023 put beside zsRE's and CounterFact's records (EasyEdit's files).

    Read: `portability`, an object with "New Question" and "New Answer"; "Recalled Relation" says what they are about.

    Raises:
        FactError: there is such an object without one of the two, or what is there is no text.
    """
    if lookup(record, "portability") is None:
        return ()
    question = text(record, "portability.New Question")
    return probe(question, answers_in(lookup(record, "portability.New Answer"), "portability.New Answer"), "one_hop")


def group_name(criterion: str) -> str:
    """A criterion's name as a group of probes: "Relation_Specificity" -> "relation_specificity"."""
    return re.sub(r"[^a-z0-9]+", "_", criterion.lower()).strip("_")
