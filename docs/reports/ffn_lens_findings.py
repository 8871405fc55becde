"""What the figures of docs/ffn-lens.md say: each claim of the papers, by a rule that stands beside it.

A claim *replicates* where its rule holds for the whole 95 % interval, does *not* where the rule fails for the whole of
it, and is *open* in between. Nothing here is written by hand about the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from corrigenda.intervals import exact_share
from eval.statistics.paired import holm, paired_test
from locate.lens.by_layer import Mean, mean_of

Verdict = Literal["replicates", "does not replicate", "open"]
PAPER_SAVED = 3.4 / 16
"""Of the layers, by the paper's early exit."""
PAPER_EXIT_ACCURACY = 0.949
PAPER_ALONE = 0.68
ALPHA = 0.05
PAPER_DRIFT = math.log(25.3 / 21.7)
"""Nats, of the paper's steering."""


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and what was found.

    Attributes:
        of: the paper.
        text: the claim.
        paper: the paper's figure, for its models.
        here: the figure here, with its interval and over how many.
        rule: when it counts as replicated.
        verdict: by that rule.
    """

    of: str
    text: str
    paper: str
    here: str
    rule: str
    verdict: Verdict


def read(summary: Mapping[str, Any]) -> Mean:
    """A mean as the data have it."""
    return Mean(summary["mean"], summary["low"], summary["high"], summary["n"])


def shown(mean: Mean | None, percent: bool = False, digits: int = 1) -> str:
    """A mean with its interval and over how many; what was not measured is said."""
    if mean is None:
        return "not measured"
    return mean.text(percent=percent, digits=digits) + (" %" if percent else "") + f" (n = {mean.n:,})"


def above(mean: Mean | None, bound: float) -> Verdict:
    """Whether a mean lies above a bound, by its interval."""
    if mean is None or mean.low is None or mean.high is None:
        return "open"
    return "replicates" if mean.low > bound else "does not replicate" if mean.high < bound else "open"


def reaches(mean: Mean, bound: float) -> Verdict:
    """Whether a mean that was aimed at a bound is not below it, by its interval."""
    if mean.high is None:
        return "open"
    return "does not replicate" if mean.high < bound else "replicates"


def apart(larger: Mean, smaller: Mean) -> Verdict:
    """Whether one mean lies above another, by their intervals, which must not touch."""
    if None in (larger.low, larger.high, smaller.low, smaller.high):
        return "open"
    if larger.low > smaller.high:  # type: ignore[operator]
        return "replicates"
    return "does not replicate" if larger.high < smaller.low else "open"  # type: ignore[operator]


def both(*verdicts: Verdict) -> Verdict:
    """Of several conditions: all hold, one fails, or it is open."""
    if all(each == "replicates" for each in verdicts):
        return "replicates"
    return "does not replicate" if "does not replicate" in verdicts else "open"


def negative(mean: Mean) -> Mean:
    """The mean of what has the other sign."""
    low = None if mean.high is None else -mean.high
    return Mean(-mean.mean, low, None if mean.low is None else -mean.low, mean.n)


def claims(figures: Mapping[str, Any]) -> list[Claim]:
    """All claims, in the order of the papers."""
    return [
        *_of_keys(figures),
        *_of_values(figures),
        *_of_aggregation(figures),
        *_of_sub_updates(figures),
        *_of_steering(figures),
        *_of_facts(figures),
    ]


def _of_keys(figures: Mapping[str, Any]) -> Iterator[Claim]:
    depth = {
        name: {of: read(one) for of, one in row.items()} for name, row in figures["sensitivity"]["by_depth"].items()
    }
    shallow, deep = depth["shallow"], depth["deep"]
    yield Claim(
        "2021, 3.2",
        "Taking out a trigger's last token changes the coefficient more than taking out its first or another one",
        "so",
        f"lower half: last {shown(shallow['last'], True)}, first {shallow['first'].text(True)} %, "
        f"random {shallow['random'].text(True)} %; upper half: last {deep['last'].text(True)} %, "
        f"first {deep['first'].text(True)} %, random {deep['random'].text(True)} %",
        "in both halves the interval of the last token's fall lies above both others",
        both(
            *(
                apart(negative(half["last"]), negative(half[other]))
                for half in (shallow, deep)
                for other in ("first", "random")
            )
        ),
    )
    yield Claim(
        "2021, 3.2",
        "The last token counts most in lower layers, whose patterns are shallow",
        "so",
        f"{shown(shallow['last'], True)} in the lower half, {shown(deep['last'], True)} in the upper",
        "the interval of the fall lies higher in the lower half",
        apart(negative(shallow["last"]), negative(deep["last"])),
    )


def _of_values(figures: Mapping[str, Any]) -> Iterator[Claim]:
    found = figures["agreement"]
    depth = {name: {of: read(row[of]) for of in ("agreement", "permuted")} for name, row in found["by_depth"].items()}
    upper, lower = depth["upper"], depth["lower"]
    chance = f"{100 * found['chance']:.4f} %"
    yield Claim(
        "2021, 4.1",
        "In upper layers values promote what follows their keys' top triggers, more often than by chance",
        "3.5 % in layers 11 to 16 of 16; by chance 0.0004 %",
        f"{shown(upper['agreement'], True, 2)} in the upper third; another memory's trigger "
        f"{upper['permuted'].text(True, 2)} %; by chance {chance}",
        "the interval lies above that of the permuted control",
        apart(upper["agreement"], upper["permuted"]),
    )
    yield Claim(
        "2021, 4.1",
        "Agreement is higher in upper layers than in lower ones",
        "close to 0 up to layer 10",
        f"{shown(upper['agreement'], True, 2)} in the upper third, {shown(lower['agreement'], True, 2)} in the lower",
        "the interval of the upper third lies above that of the lower",
        apart(upper["agreement"], lower["agreement"]),
    )
    n = found["peaked"]["n"]
    there = found["by_depth"]["upper"]["peaked"]
    share = Mean(there / n, *exact_share(there / n, n), n)
    yield Claim(
        "2021, 4.2",
        "The most peaked values lie in upper layers",
        "97 of 100 in layers 11 to 16 of 16",
        f"{there} of {n} in the upper third",
        "the exact interval of the share lies above 1/3",
        above(share, 1 / 3),
    )


def _of_aggregation(figures: Mapping[str, Any]) -> Iterator[Claim]:
    found = figures["aggregation"]
    lowest = min((read(one) for one in found["by_layer"]["alone"].values()), key=lambda mean: mean.mean)
    yield Claim(
        "2021, 5.1",
        "What a layer says most is in most cases what no single memory of it says",
        "at least 68 % in every layer",
        f"{shown(read(found['alone']), True)} over layers; lowest layer {shown(lowest, True)}",
        "the lowest layer's interval lies above 68 %",
        above(lowest, PAPER_ALONE),
    )
    yield Claim(
        "2021, 5.2",
        "Many predictions, at least a quarter, are settled in the lower half of the layers",
        "about a third",
        shown(read(found["settled_in_lower_half"]), True),
        "the interval lies above 1/4",
        above(read(found["settled_in_lower_half"]), 1 / 4),
    )
    cases = {name: read(one) for name, one in found["cases"].items()}
    yield Claim(
        "2021, 5.2",
        "Where a layer changes the prediction, the new one is a composition, seldom the FFN's own",
        "so in most cases",
        f"{shown(read(found['composed_of_changed']), True)} of the changes are compositions; over layers "
        + ", ".join(f"{name} {mean.text(True)} %" for name, mean in cases.items()),
        "the interval lies above 50 %",
        above(read(found["composed_of_changed"]), 0.5),
    )


def _of_sub_updates(figures: Mapping[str, Any]) -> Iterator[Claim]:
    found = figures["sub_updates"]
    compared = {name: {of: read(one) for of, one in row.items()} for name, row in found["compared"].items()}
    k = found["dominant"]
    highest, mean = compared["highest"], compared["mean"]
    yield Claim(
        "2022, 5",
        "Where the prediction settles, dominant sub-updates promote it more than in other layers",
        "so",
        f"mean score of the {k} dominant {mean['there'].text(digits=2)} there, "
        f"{mean['elsewhere'].text(digits=2)} elsewhere; highest score {highest['there'].text(digits=2)} and "
        f"{highest['elsewhere'].text(digits=2)}; n = {mean['there'].n}",
        "the intervals of both differences lie above 0",
        both(above(mean["difference"], 0), above(highest["difference"], 0)),
    )
    net = read(found["at_events"]["net"])
    yield Claim(
        "2022, 5",
        "There sub-updates promote the prediction more than they eliminate it",
        "promotion, not elimination",
        f"promotion {compared['promotion']['there'].text()}, elimination {compared['elimination']['there'].text()}, "
        f"together {shown(net)}",
        "the interval of the sum lies above 0",
        above(net, 0),
    )


def differences(one: Mapping[str, Any], place: int) -> Mean | None:
    """Of one set of driven values: how the share of texts changes, paired by prompt, with the edit of a place."""
    base, after = one["with"][0], one["with"][place]
    return mean_of([new - old for new, old in zip(after, base, strict=True)])


def _of_steering(figures: Mapping[str, Any]) -> Iterator[Claim]:
    tried: list[tuple[Mean, float, float, str]] = []
    for name, one in figures["steering"]["sets"].items():
        if name == "random values":
            continue
        for place, row in enumerate(one["rows"]):
            change, drift = differences(one, place), row["drift"]
            lowers = name != "insults" or row["strength"] < 0
            if not place or change is None or not lowers or drift is None:
                continue
            # Few texts change, and a bootstrap of few changes is too sure: a test by permutation decides.
            p = paired_test(one["with"][place], one["with"][0])
            here = (
                f"{100 * one['rows'][0]['share'][0]:.1f} to {100 * row['share'][0]:.1f} % (paired change "
                f"{change.text(True)} points, n = {change.n}), drift {drift[0]:.3f} nats, {name} at {row['strength']:g}"
            )
            tried.append((change, p, drift[0], here))
    corrected = holm([p for _, p, _, _ in tried])
    verdicts: list[Verdict] = []
    for (change, _, drift, _), p in zip(tried, corrected, strict=True):
        if p >= ALPHA:
            verdicts.append("open")
        else:
            verdicts.append("replicates" if change.mean < 0 and drift <= 2 * PAPER_DRIFT else "does not replicate")
    best = min(range(len(tried)), key=lambda k: (verdicts[k] != "replicates", tried[k][0].mean), default=None)
    yield Claim(
        "2022, 5.1",
        "Ten driven values lower the share of toxic texts at little cost in perplexity",
        f"58.5 to 30.8 %, perplexity 21.7 to 25.3 ({PAPER_DRIFT:.2f} nats), by a classifier",
        "not measured" if best is None else f"{tried[best][3]}; p = {corrected[best]:.2f}",
        f"some strength lowers the share at a drift of at most {2 * PAPER_DRIFT:.2f} nats (p < {ALPHA} by a paired "
        f"permutation test with Holm's correction for the {len(tried)} strengths tried)",
        "replicates"
        if "replicates" in verdicts
        else "does not replicate"
        if verdicts and set(verdicts) == {"does not replicate"}
        else "open",
    )


def fall_layers(known: Sequence[Mapping[str, Any]], source: str) -> list[float]:
    """Around which layer each fact's answer falls most when a source is not read; NaN where it has none."""
    found = []
    for one in known:
        sources = one["knockout"]["sources"]
        row = one["knockout"]["changes"][sources.index(source)] if source in sources else []
        found.append(float(min(range(len(row)), key=row.__getitem__)) if row else math.nan)
    return found


def changes(known: Sequence[Mapping[str, Any]], source: str) -> list[Mean | None]:
    """The mean relative change of P(answer) by layer, over the facts that have the source."""
    rows = [
        one["knockout"]["changes"][one["knockout"]["sources"].index(source)]
        for one in known
        if source in one["knockout"]["sources"]
    ]
    return [mean_of(column) for column in zip(*rows, strict=True)]


def rates(known: Sequence[Mapping[str, Any]], of: str) -> list[Mean | None]:
    """The mean attributes rate by layer: of a subject's "own" words, or of an "other" subject's."""
    return [mean_of(column) for column in zip(*(one["rates"][of] for one in known), strict=True)]


def extracted(known: Sequence[Mapping[str, Any]], by: str) -> list[float]:
    """Of each fact whether attention, or the FFN, of some layer adds the answer as its top token."""
    return [float(0 in one["ranks"][by]) for one in known]


def _of_facts(figures: Mapping[str, Any]) -> Iterator[Claim]:
    known, n_layers = figures["facts"]["known"], figures["n_layers"]
    falls = {source: changes(known, source) for source in ("subject", "relation", "last")}
    lowest = {
        source: min((mean for mean in row if mean), key=lambda mean: mean.mean, default=None)
        for source, row in falls.items()
    }
    layers = {source: mean_of(fall_layers(known, source)) for source in ("subject", "relation")}
    subject = lowest["subject"]
    fallen = ", ".join(
        f"{source} {shown(mean, True)} around layer {falls[source].index(mean)}"
        for source, mean in lowest.items()
        if mean
    )
    yield Claim(
        "2023, 5",
        "The answer falls when the last position cannot read the subject, most in middle and upper layers",
        "a large fall, in middle and upper layers (GPT-2 XL, GPT-J)",
        f"largest mean change: {fallen}",
        f"the interval of the largest mean change lies below 0, and its layer is {n_layers // 3} or above",
        "open"
        if subject is None
        else both(
            above(negative(subject), 0),
            "replicates" if falls["subject"].index(subject) >= n_layers // 3 else "does not replicate",
        ),
    )
    pairs = zip(fall_layers(known, "subject"), fall_layers(known, "relation"), strict=True)
    later = mean_of([subject_layer - relation_layer for subject_layer, relation_layer in pairs])
    yield Claim(
        "2023, 5",
        "The relation is read in lower layers than the subject",
        "so",
        "; ".join(f"{source}: layer {shown(mean)}" for source, mean in layers.items())
        + f"; difference {shown(later)} layers",
        "the interval of the difference of each fact's layers of largest fall lies above 0",
        above(later, 0),
    )
    upper = range(n_layers // 2, n_layers)
    means = {of: [fmean(one["rates"][of][layer] for layer in upper) for one in known] for of in ("own", "other")}
    own, other = (mean_of(each) for each in means.values())
    difference = mean_of([mine - others for mine, others in zip(*means.values(), strict=True)])
    yield Claim(
        "2023, 6",
        "The subject's last state is enriched with its attributes",
        "the rate rises with depth (words of Wikipedia paragraphs)",
        f"in the upper half {shown(own, True)} of the top 50 tokens are of the model's own words about the subject, "
        f"{shown(other, True)} of those about another; difference {shown(difference, True)}",
        "the interval of the paired difference lies above 0",
        above(difference, 0),
    )
    attention, ffn = (extracted(known, by) for by in ("attention", "ffn"))
    paired = mean_of([a - b for a, b in zip(attention, ffn, strict=True)])
    yield Claim(
        "2023, 7",
        "The answer is extracted by attention, more than by the FFN",
        "so, for most facts of GPT-2 XL",
        f"attention adds the answer as its top token in some layer for {shown(mean_of(attention, shares=True), True)} "
        f"of the facts, the FFN for {shown(mean_of(ffn, shares=True), True)}; difference {shown(paired, True)}",
        "the interval of the paired difference lies above 0",
        above(paired, 0),
    )
