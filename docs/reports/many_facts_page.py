"""What docs/many_facts.md says: the comparisons, worked out once, and what its template shows."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from many_facts_methods import AIMS, DATA, METHODS, PAIRS, Wanted
from options import Data
from report import Draw
from rows import after_at, corrected
from runs import at_edge

from eval import METRICS
from eval.protocols.curves import curve_columns, draw_curves, value_at
from eval.protocols.orders import order_interval
from eval.statistics.comparison import Comparison, compare
from eval.statistics.paired import MIN_FACTS

NAME = "many_facts"
STRONG = 0.9  # methods that say so many of the facts are strong alike, and what they leave can be compared
FREE, PARAPHRASES = "free_generation_strict", "paraphrase_free_generation_strict"
COSTS = ("preservation", "perplexity_drift")
DRAWN = ("score", FREE, PARAPHRASES, "preservation", "neighbourhood_kl", "perplexity_drift")
"""What the picture has, of what was measured."""
COLUMNS = (FREE, f"first.{FREE}", PARAPHRASES, "neighbourhood_success", *COSTS)
"""What the tables have: the first half of the scored facts apart, too, since it is those that are forgotten."""
BETWEEN_ORDERS = ("score", FREE, "first.token_accuracy", PARAPHRASES, *COSTS)
"""What methods are compared by order by order: with few orders, that much more than a test on the facts of one."""
ABOUT_BLANKS = ("preservation", "locality_kl")  # what says nothing where the other answers are blank
SHORT = {  # headings of this page, where those of all curves are long or say less
    "score": "S",
    FREE: "free",
    f"first.{FREE}": "of the first",
    "efficacy_success": "ES",
    "paraphrase_success": "PS",
    "neighbourhood_success": "NS",
    PARAPHRASES: "free, paraphrases",
    "neighbourhood_kl": "neighbourhood KL",
}
ASKED = [key for by_t in AIMS.values() for wanted in by_t.values() for key, *_ in wanted]
Methods = Mapping[str, Data]
Point = Data
Facts = Data


def nothing() -> dict[str, Any]:
    """A method without a point yet."""
    return {"points": [], "facts": {}, "limits": {}, "orders": {}}


def digest(figures: Data) -> dict[str, Any]:
    """What the page shows of each data set, and of the trials; and how methods and metrics are called."""
    tuned = figures.get("tuning", {"methods": {}})["methods"].items()
    return {
        "titles": {name: method.title for name, method in METHODS.items()},
        "heads": headings((*COLUMNS, *BETWEEN_ORDERS, *ASKED)),
        **{"between": BETWEEN_ORDERS, "strong": STRONG},
        "sets": {name: section(name, methods, figures["batch"]) for name, methods in figures["data"].items()},
        "tuned": {name: grid_of(found) for name, found in tuned if found["trials"] and found["chosen"]},
    }


def section(name: str, methods: Methods, batch: int) -> dict[str, Any]:
    hidden, at = unsaid(methods), shown_at(methods)
    return {
        **{"key": DATA[name][1], "at": at, "blank": bool(hidden)},
        "columns": [key for key in COLUMNS if key not in hidden and measured(methods, key)],
        "costs": [cost for cost in COSTS if cost not in hidden],
        "alike": {str(t): alike(methods, t) for t in at},
        **{"comparisons": comparisons(name, methods, batch), "orders": between_orders(methods)},
        "aims": list(aims(name, methods)),
    }


def comparisons(name: str, methods: Methods, batch: int) -> list[dict[str, Any]]:
    """The planned comparisons on the same facts, with what they cost beside them; no T that one batch reaches."""
    key, found = DATA[name][1], []
    for t, (left, right, of_later_batches) in itertools.product(shown_at(methods), PAIRS):
        sides = [methods.get(side, nothing()) for side in (left, right)]
        one, other = (side["facts"].get(str(t)) for side in sides)
        if (test := paired(one, other, key)) and not (of_later_batches and t <= batch):
            first, second = (point_at(side["points"], t) or {} for side in sides)
            costs = {cost: gap([(first, second)], cost) for cost in COSTS if cost not in unsaid(methods)}
            figures = {"n": test.n, "mean": test.difference, "low": test.low, "high": test.high, "p": test.p}
            found.append({"left": left, "right": right, "t": t, **figures, "costs": costs})
    corrected(found, to="holm")
    return found


def paired(one: Facts | None, other: Facts | None, key: str) -> Comparison | None:
    """A paired comparison of two of `facts_at`; None where one is lacking, or few facts are common."""
    if one is None or other is None or len(one["columns"].keys() & other["columns"].keys()) < MIN_FACTS:
        return None
    return compare(one["columns"], other["columns"], one["subjects"], METRICS[key].combine)


def between_orders(methods: Methods) -> list[dict[str, Any]]:
    """The planned comparisons order by order: what one method has more than the other in the same order."""
    rows = []
    for left, right, _ in PAIRS:
        sides = [methods[side] for side in (left, right) if side in methods and methods[side]["orders"]]
        if len(sides) == 2:
            one, other = ({"": side["points"]} | side["orders"] for side in sides)
            common = [(one[order], other[order]) for order in one if order in other]
            t = min(max(int(point["t"]) for point in points) for pair in common for points in pair)
            pairs = [(a, b) for pair in common if (a := point_at(pair[0], t)) and (b := point_at(pair[1], t))]
            gaps = {key: gap(pairs, key) for key in BETWEEN_ORDERS}
            rows.append({"left": left, "right": right, "t": t, "n": len(pairs), "gaps": gaps})
    return rows


def gap(pairs: Sequence[tuple[Point, Point]], key: str) -> dict[str, float | None] | None:
    """The difference of two methods' points of the same orders, a mean; None where one has no figure."""
    values = [(after_at(one, key), after_at(other, key)) for one, other in pairs]
    # Rounded, since `order_interval` has none for gaps that are all the same.
    gaps = [round(one - other, 12) for one, other in values if one is not None and other is not None]
    low, high = order_interval(gaps) or (None, None)
    return {"mean": fmean(gaps), "low": low, "high": high} if gaps and len(gaps) == len(values) else None


def alike(methods: Methods, t: int) -> dict[str, Any]:
    """How many methods say about as many facts, and of what they leave the least and the most, and which has it."""
    points = {m: p for m, one in methods.items() if not METHODS[m].control and (p := point_at(one["points"], t))}
    strong = {m: p for m, p in points.items() if (after_at(p, FREE) or 0.0) >= STRONG}
    ends = {}
    for key in (PARAPHRASES, *COSTS):
        values = {m: after_at(p, key) or 0.0 for m, p in strong.items() if value_at(p, key)}
        if len(values) == len(strong) > 1 and key not in unsaid(methods):
            ends[key] = [(m, values[m]) for m in (of(values, key=values.__getitem__) for of in (min, max))]
    return {"n": len(strong), "ends": ends}


def aims(name: str, methods: Methods) -> Iterator[dict[str, Any]]:
    """What was asked for beforehand of the best closed form, and which meet it."""
    for t, wanted in sorted(AIMS.get(name, {}).items()):
        closed = {m: p for m, one in methods.items() if METHODS[m].closed and (p := point_at(one["points"], t))}
        known = {m: value for m, p in closed.items() if (value := after_at(p, DATA[name][1])) is not None}
        if first := [m for m in known if not METHODS[m].afterwards]:
            top = max(first, key=lambda m: known[m])
            met = [m for m in known if m not in first and all(one["met"] for one in asked_of(closed[m], wanted))]
            yield {"t": t, "top": top, "asked": asked_of(closed[top], wanted), "met": met}


def asked_of(point: Point, wanted: Sequence[Wanted]) -> list[dict[str, Any]]:
    """The metric, its bound, the figure, and whether it is met, of what was asked for and measured."""
    found = []
    for key, sign, bound in wanted:
        if (value := after_at(point, key)) is not None:
            limit = bound if sign != "before -" else float((value_at(point, key) or {})["before"] or 0.0) - bound
            met = value <= limit if sign == "<=" else value >= limit
            found.append({"key": key, "most": sign == "<=", "limit": limit, "after": value, "met": met})
    return found


def grid_of(found: Data) -> dict[str, Any]:
    """Among which settings a method's were chosen, at which edges they lie, and the score of the chosen and of all."""
    scores = [trial["figures"]["score"] for trial in found["trials"] if "score" in trial["figures"]]
    [own] = [trial["figures"]["score"] for trial in found["trials"] if trial["settings"] == found["chosen"]]
    grid = {key: sorted({trial["settings"][key] for trial in found["trials"]}) for key in found["chosen"]}
    return {"grid": grid, "edge": at_edge(found), "own": own, "least": min(scores), "most": max(scores)}


def headings(keys: Sequence[str] = COLUMNS) -> dict[str, str]:
    """What the metrics are called in tables of curves."""
    known = curve_columns() | SHORT
    return {key: known.get(key, METRICS[key.rpartition(".")[2]].title) for key in keys}


def measured(methods: Methods, key: str) -> bool:
    """Whether some point has a metric."""
    return any(value_at(point, key) for found in methods.values() for point in found["points"])


def unsaid(methods: Methods) -> tuple[str, ...]:
    """The metrics that say nothing of a data set, since most of its other answers are blank."""
    blank = [after_at(point, "blank_answers") or 0.0 for found in methods.values() for point in found["points"]]
    return ABOUT_BLANKS if blank and min(blank) > 0.5 else ()


def shown_at(methods: Methods) -> list[int]:
    """The T that some method has, the largest first; without the smallest, if there are several."""
    found = sorted({int(point["t"]) for one in methods.values() for point in one["points"]}, reverse=True)
    return found[:-1] or found


def point_at(points: Sequence[Point], t: int) -> Point | None:
    """The point of a curve at T."""
    return next((point for point in points if point["t"] == t), None)


def pictures(data: Data) -> dict[str, Draw]:
    """The curves of each data set."""

    def draw(name: str, data: Data, path: Path) -> None:
        methods = data["figures"]["data"][name]
        curves = {METHODS[key].title: found["points"] for key, found in methods.items()}
        drawn = [key for key in DRAWN if key not in unsaid(methods) and measured(methods, key)]
        names = [*headings(drawn).values()]
        draw_curves(curves, drawn, path, names=names, d_ffn=data["figures"]["d_ffn"])

    return {f"{NAME}-{name}.png": partial(draw, name) for name in data["figures"]["data"]}
