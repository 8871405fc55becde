"""What the figures of docs/ffn-lens.md say: each claim of the papers, and whether it replicates.

A claim *replicates* where the whole 95 % interval lies on its side of what it is compared with, does *not* where the
whole of it lies on the other, and is *open* in between. Nothing here is written by hand about the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from words import ALPHA

from corrigenda.intervals import exact_share
from eval.statistics.paired import holm, paired_test
from locate.lens.by_layer import Mean, mean_of

Verdict = Literal["replicates", "does not replicate", "open"]
PAPER_ALONE = 0.68
MOST_DRIFT = 0.31
"""Nats: twice what the paper's steering costs (perplexity 21.7 to 25.3)."""


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and what was found.

    Attributes:
        of: the paper, and its section.
        text: the claim, with the bound by which it is judged.
        paper: the paper's figure, for its models.
        here: the figure here, with its interval and what it is compared with.
        verdict: by the intervals.
    """

    of: str
    text: str
    paper: str
    here: str
    verdict: Verdict


def read(summary: Mapping[str, Any]) -> Mean:
    """A mean as the data have it."""
    return Mean(summary["mean"], summary["low"], summary["high"], summary["n"])


def shown(mean: Mean | None, digits: int = 1) -> str:
    """A share in % with its interval; what was not measured is said."""
    return "not measured" if mean is None else mean.text(True, digits) + " %"


def above(mean: Mean | None, bound: float) -> Verdict:
    """Whether a mean lies above a bound, by its interval."""
    if mean is None or mean.low is None or mean.high is None:
        return "open"
    return "replicates" if mean.low > bound else "does not replicate" if mean.high < bound else "open"


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
        *_of_keys_and_values(figures),
        *_of_aggregation(figures["aggregation"]),
        *_of_sub_updates(figures["sub_updates"]),
        _of_steering(figures["steering"]),
        *_of_facts(figures["facts"]["known"], figures["n_layers"]),
    ]


def _of_keys_and_values(figures: Mapping[str, Any]) -> Iterator[Claim]:
    falls = {
        depth: {of: negative(read(one)) for of, one in row.items()}
        for depth, row in figures["sensitivity"]["by_depth"].items()
    }
    shallow, deep = (falls[depth]["last"] for depth in ("shallow", "deep"))
    others = {
        depth: max((falls[depth][of] for of in ("first", "random")), key=lambda fall: fall.mean) for depth in falls
    }
    yield Claim(
        "2021, 3.2",
        "Without a trigger's last token the coefficient falls more than without its first or a random one",
        "so",
        f"lower half of the layers {shown(shallow)} against at most {shown(others['shallow'])}, upper half "
        f"{shown(deep)} against {shown(others['deep'])}; {shallow.n} neurons each",
        both(*(apart(row["last"], row[of]) for row in falls.values() for of in ("first", "random"))),
    )
    yield Claim(
        "2021, 3.2",
        "The last token counts more in lower layers than in upper ones",
        "so",
        "the first figures of the row above",
        apart(shallow, deep),
    )
    found = figures["agreement"]
    upper, lower = (found["by_depth"][depth] for depth in ("upper", "lower"))
    agrees, control = read(upper["agreement"]), read(upper["permuted"])
    yield Claim(
        "2021, 4.1",
        "In upper layers values promote what follows their keys' top triggers, more often than by chance",
        "3.5 % in layers 11 to 16 of 16",
        f"{shown(agrees, 2)} of the upper third, {shown(control, 2)} with another memory's trigger",
        apart(agrees, control),
    )
    yield Claim(
        "2021, 4.1",
        "They do so more than in lower layers",
        "close to 0 up to layer 10",
        f"{shown(read(lower['agreement']), 2)} of the lower third",
        apart(agrees, read(lower["agreement"])),
    )
    n, there = found["peaked"]["n"], upper["peaked"]
    yield Claim(
        "2021, 4.2",
        "More than a third of the most peaked values lie in the upper third",
        "97 of 100 in layers 11 to 16 of 16",
        f"{there} of {n}",
        above(Mean(there / n, *exact_share(there / n, n), n), 1 / 3),
    )


def _of_aggregation(found: Mapping[str, Any]) -> Iterator[Claim]:
    alone = sorted((read(one) for one in found["by_layer"]["alone"].values()), key=lambda mean: mean.mean)
    yield Claim(
        "2021, 5.1",
        f"In every layer, at least {100 * PAPER_ALONE:.0f} % of what it says most is said by no single memory",
        "so",
        f"lowest layer {shown(alone[0])}, highest {shown(alone[-1])}",
        above(alone[0], PAPER_ALONE),
    )
    settled = read(found["settled_in_lower_half"])
    yield Claim(
        "2021, 5.2",
        "At least a quarter of the predictions are settled in the lower half of the layers",
        "about a third",
        shown(settled),
        above(settled, 1 / 4),
    )
    composed = read(found["composed_of_changed"])
    yield Claim(
        "2021, 5.2",
        "Where a layer changes the prediction, more than half of the new ones are a composition: not what the FFN says",
        "so in most cases",
        shown(composed),
        above(composed, 0.5),
    )


def at_events_layers(found: Mapping[str, Any], name: str) -> Mean:
    """A score over all positions of the layers in which predictions settle, each as often as it is such a layer.

    Upper layers have the larger scores and most of the events, so "elsewhere" alone compares layers. The bounds are
    those of each layer added up: too wide rather than too narrow.
    """
    events, rows = found["events"], [read(one) for one in found["scores_by_layer"][name]]
    parts = [[n * bound for bound in (row.mean, row.low, row.high)] for n, row in zip(events, rows, strict=True)]
    return Mean(*(sum(column) / sum(events) for column in zip(*parts, strict=True)), sum(events))


def _of_sub_updates(found: Mapping[str, Any]) -> Iterator[Claim]:
    there, elsewhere = (read(found["compared"]["mean"][where]) for where in ("there", "elsewhere"))
    same = at_events_layers(found, "mean")
    yield Claim(
        "2022, 5",
        "Where the prediction settles, dominant sub-updates promote it more than elsewhere",
        "so",
        f"mean score {there.text()}, {elsewhere.text()} in other layers, but {same.text()} over all positions of the "
        f"same layers ({found['events'][-1]} of {sum(found['events'])} settle in the last one)",
        both(apart(there, elsewhere), apart(there, same)),
    )
    promotion, elimination = (read(found["compared"][name]["there"]) for name in ("promotion", "elimination"))
    yield Claim(
        "2022, 5",
        "There they promote it more than they eliminate it",
        "so",
        f"{promotion.text(digits=0)} and {elimination.text(digits=0)}",
        above(read(found["at_events"]["net"]), 0),
    )


def differences(one: Mapping[str, Any], place: int) -> Mean | None:
    """Of one set of driven values: how the share of texts changes, paired by prompt, with the edit of a place."""
    base, after = one["with"][0], one["with"][place]
    return mean_of([new - old for new, old in zip(after, base, strict=True)])


def _of_steering(found: Mapping[str, Any]) -> Claim:
    tried: list[tuple[Mean, float, float, str]] = []
    for name, one in found["sets"].items():
        for place, row in enumerate(one["rows"]):
            change, drift = differences(one, place), row["drift"]
            lowers = name != "random values" and (name != "insults" or row["strength"] < 0)
            if place and change is not None and lowers and drift is not None:
                # Few texts change, and a bootstrap of few changes is too sure: a test by permutation decides.
                p = paired_test(one["with"][place], one["with"][0])
                here = f"{sum(one['with'][0]):.0f} to {sum(one['with'][place]):.0f} of {change.n} texts by a word list"
                tried.append((change, p, drift[0], f"{here} ({name} at {row['strength']:g})"))
    corrected = holm([p for _, p, _, _ in tried])
    verdicts: list[Verdict] = []
    for (change, _, drift, _), p in zip(tried, corrected, strict=True):
        lower: Verdict = "replicates" if change.mean < 0 and drift <= MOST_DRIFT else "does not replicate"
        verdicts.append("open" if p >= ALPHA else lower)
    best = min(range(len(tried)), key=lambda k: (verdicts[k] != "replicates", tried[k][0].mean), default=None)
    return Claim(
        "2022, 5.1",
        f"Ten driven values lower the share of toxic texts, at a drift of at most {MOST_DRIFT} nats",
        "58.5 to 30.8 % by a classifier, drift 0.15 nats",
        "not measured" if best is None else f"{tried[best][3]}, drift {tried[best][2]:.2f}; p = {corrected[best]:.2f}",
        "replicates"
        if "replicates" in verdicts
        else "does not replicate"
        if verdicts and set(verdicts) == {"does not replicate"}
        else "open",
    )


def rows_of(known: Sequence[Mapping[str, Any]], source: str) -> list[list[float]]:
    """The relative change of each fact's P(answer) by layer where the last position cannot read a source."""
    return [one["knockout"]["changes"][one["knockout"]["sources"].index(source)] for one in known]


def changes(known: Sequence[Mapping[str, Any]], source: str) -> list[Mean | None]:
    """Their means by layer."""
    return [mean_of(column) for column in zip(*rows_of(known, source), strict=True)]


def rates(known: Sequence[Mapping[str, Any]], of: str) -> list[Mean | None]:
    """The mean attributes rate by layer: of a subject's "own" words, or of an "other" subject's."""
    return [mean_of(column) for column in zip(*(one["rates"][of] for one in known), strict=True)]


def _of_facts(known: Sequence[Mapping[str, Any]], n_layers: int) -> Iterator[Claim]:
    means = [mean for mean in changes(known, "subject") if mean]
    lowest = min(means, key=lambda mean: mean.mean)
    yield Claim(
        "2023, 5",
        "P(answer) falls when the last position cannot read the subject, most around a layer above the lowest third",
        "so (GPT-2 XL, GPT-J)",
        f"{shown(lowest)} around layer {means.index(lowest)}",
        both(
            above(negative(lowest), 0),
            "replicates" if means.index(lowest) >= n_layers // 3 else "does not replicate",
        ),
    )
    layers = [[row.index(min(row)) for row in rows_of(known, source)] for source in ("subject", "relation")]
    later = mean_of([subject - relation for subject, relation in zip(*layers, strict=True)])
    yield Claim(
        "2023, 5",
        "The relation is read in lower layers than the subject",
        "so",
        f"largest fall around layers {fmean(layers[1]):.1f} and {fmean(layers[0]):.1f}; paired difference "
        + ("not measured" if later is None else later.text()),
        above(later, 0),
    )
    upper = range(n_layers // 2, n_layers)
    own, other = ([fmean(one["rates"][of][layer] for layer in upper) for one in known] for of in ("own", "other"))
    more = mean_of([a - b for a, b in zip(own, other, strict=True)])
    yield Claim(
        "2023, 6",
        "In upper layers the subject's last state is enriched with its attributes",
        "the rate rises with depth",
        f"{100 * fmean(own):.1f} % of its top 50 tokens, {100 * fmean(other):.1f} % for another subject's words; "
        f"paired difference {shown(more)}",
        above(more, 0),
    )
    attention, ffn = ([float(0 in one["ranks"][by]) for one in known] for by in ("attention", "ffn"))
    paired = mean_of([a - b for a, b in zip(attention, ffn, strict=True)])
    yield Claim(
        "2023, 7",
        "The answer is extracted by attention in more facts than by the FFN",
        "for most facts of GPT-2 XL",
        f"top token of what some layer adds: attention {sum(attention):.0f}, FFN {sum(ffn):.0f} of {len(known)}; "
        f"paired difference {shown(paired)}",
        above(paired, 0),
    )
