"""Every probe's answer before and after: free, and under teacher forcing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from corrigenda import Fact
from eval.measurement import Measurement
from eval.records import ScoredProbe, ScoredPrompt
from eval.scoring.probabilities import TargetScore

KINDS: Mapping[str, tuple[str, str]] = {
    "prompt": ("The prompt", "Its free answer should begin with the new object."),
    "paraphrases": ("Paraphrases", "So should these."),
    "portability": ("Portability", "What follows from the new fact: each has an answer of its own."),
    "neighbourhood": ("Neighbourhood", "Other subjects of the relation: the model should go on as before."),
    "locality": ("Locality", "Something else: the model should go on as before."),
}
"""The kinds of prompts that the page shows: a heading, and what should become of them."""

ERASED: Mapping[str, str] = {
    "prompt": "The old object should be less probable than before.",
    "paraphrases": "So should it be here.",
}
"""What should become of them where the fact is erased, and there is no new object."""

STAYING = ("neighbourhood", "locality")
"""Those whose continuation should stay."""


def answers(fact: Fact, before: Measurement, after: Measurement | None) -> dict[str, list[dict[str, Any]]]:
    """By kind a row ``{"prompt", "wanted", "before", "after"}`` for each prompt; "after" is None without an edit.

    For either state ``{"answer", "right", "figures", "log_probs"}``: ``right`` is whether the free answer begins with
    what is wanted, or, where it should stay, whether it did (None without an edit); ``figures`` are those under teacher
    forcing, and ``log_probs`` those of the targets' tokens that they are of, in nats.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in KINDS:
        records = [_scored(before, kind), [] if after is None else _scored(after, kind)]
        rows = []
        for number, record in enumerate(records[0]):
            row: dict[str, Any] = {"prompt": record.prompt, "wanted": _wanted(fact, kind, number)}
            row["before"] = _answer(record, record.answer, None if kind in STAYING else record.strict)
            row["after"] = None
            if number < len(records[1]):
                later = records[1][number]
                stays = kind in STAYING
                row["after"] = _answer(later, later.answer, later.preserved if stays else later.strict)
            rows.append(row)
        if rows:
            found[kind] = rows
    return found


def _scored(measurement: Measurement, kind: str) -> Sequence[ScoredPrompt | ScoredProbe]:
    return measurement.scored(kind) or measurement.probes(kind)


def _wanted(fact: Fact, kind: str, number: int) -> str | None:
    if kind == "portability":
        return fact.portability[number].answer
    return None if kind in STAYING else fact.target_new


def _answer(record: ScoredPrompt | ScoredProbe, answer: str | None, right: bool | None) -> dict[str, Any]:
    targets = {"P(new)": "log_probs_new", "P(old)": "log_probs_true", "P(expected)": "log_probs"}
    figures = {name: TargetScore(tuple(record[key]), ()).probability for name, key in targets.items() if key in record}
    if record.token_accuracy is not None:
        figures["token accuracy"] = record.token_accuracy
    if record.kl is not None:
        figures["KL from before"] = record.kl
    # What was not finite is absent.
    figures = {name: value for name, value in figures.items() if math.isfinite(value)}
    log_probs = {name: list(record[key]) for name, key in targets.items() if key in record}
    return {"answer": answer, "right": right, "figures": figures, "log_probs": log_probs}
