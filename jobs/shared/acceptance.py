"""Rules of acceptance: what a list has to reach, built or verified, so that the program ends with 0."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from corrigenda.settings.checked import Count, NotNegative, Share, checked
from eval.metrics import METRICS
from eval.metrics.unit import Unit
from jobs.shared.base import say


@dataclass(frozen=True)
@checked
class AcceptSettings:
    """``job.accept``; None for no such rule.

    Attributes:
        efficacy: the share of facts that hold, at least: the free answer to the prompt begins with the new object.
        paraphrases: the same of their paraphrases.
        preservation: the share of neighbourhood and locality prompts after which the model goes on as before, at least.
        bleed: the share of these prompts at which the model says the new object, at most.
        perplexity_drift: in nats, at most.
        collisions: how many pairs of facts get into each other's way, at most.
    """

    group: ClassVar[str] = "job.accept"

    efficacy: Share | None = None
    paraphrases: Share | None = None
    preservation: Share | None = None
    bleed: Share | None = None
    perplexity_drift: NotNegative | None = None
    collisions: Count | None = None


_PAIRS = Unit("pairs", digits=0)
_FIGURE = {
    "efficacy": "free_generation_{mark}",
    "paraphrases": "paraphrase_free_generation_{mark}",
    "preservation": "preservation",
    "bleed": "bleed",
    "perplexity_drift": "perplexity_drift",
}


def judge(accept: AcceptSettings, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each rule ``{"rule", "wanted", "found", "passed", "said"}`` by a report of `report_of`.

    A figure that was not measured (``found`` is None) passes no rule.
    """
    rules = []
    for name, wanted in dataclasses.asdict(accept).items():
        if wanted is None:
            continue
        found: float | None
        if name == "collisions":
            found, at_least, unit = len(report["collisions"]) if report["keys_compared"] else None, False, _PAIRS
            missing = "this way of building compares no keys"
        else:
            metric = METRICS.named(_FIGURE[name].format(mark=report.get("mark", "strict")))
            found = report["metrics"].get(metric.key, {}).get("after")
            at_least, unit = metric.better == "high", metric.written
            missing = "the facts have no such prompts"
        passed = found is not None and (found >= wanted if at_least else found <= wanted)
        shown = f"not measured: {missing}" if found is None else unit.text(found)
        said = f"{name} {shown}, wanted {'at least' if at_least else 'at most'} {unit.text(wanted)} {unit.symbol}"
        rules.append({"rule": name, "wanted": wanted, "found": found, "passed": passed, "said": said})
    return rules


def say_verdict(report: Mapping[str, Any]) -> None:
    """Says how many facts hold, what changed since the last report, and what became of its ``rules`` (`judge`)."""
    say(f"{report['n_holding']} of {report['n_in_force']} facts hold")
    since = report["since"]
    for name, ids in (("hold now, and did not", since["gained"]), ("do not hold any more", since["lost"])):
        if ids:
            say(f"{len(ids)} {name}: {', '.join(ids[:10])}{' ...' if len(ids) > 10 else ''}")
    touched = sum(bool(row.get("changed_next_to_it")) for row in report["facts"])
    if touched:
        does = "does not go on word for word as before" if report.get("before", True) else "says the new object"
        say(f"next to {touched} of them the model {does}")
    for rule in report["rules"]:
        say(f"{'accepted' if rule['passed'] else 'not accepted'}: {rule['said']}")
