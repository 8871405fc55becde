"""docs/tradeoff.md: what memories beside a layer answer rightly, against what they answer wrongly.

GRACE (over its radius) and the two WISE (over the threshold) learn zsRE facts one after another. As many trials choose
each editor's settings; then come the curves, on other facts: each point is the same learned memory with another radius
or threshold. An editor's trials that are in the data file are not made again.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from options import FILES, OUTPUTS, Data, Options, asking, some_of
from pages import Collected, kept, mean
from report import Report
from runs import at_edge, chosen, combinations
from tradeoff_memories import EDITS, FORCED, FREE, KINDS, SETTINGS, Part, Shared, objective

from corrigenda import load, read_facts
from editing import Unrelated
from editing.configuration import preset_values

NAME, SCRIPT = "tradeoff", "tradeoff.py"
COMPARED = ("grace_wide", "wise_whitened")  # the two whose paraphrases are compared
LIMITS = (5, 15, 30, 60, 100)  # of what is answered wrongly, in %: the page says what can be had below each
LIMIT = 30  # the one that the page begins with: there `COMPARED` have points that answer about equally much
TITLES = {  # of the picture: what is answered rightly, a row of panels each, over what is answered wrongly
    EDITS: "reliability (free generation)",
    FREE: "generalization (free generation)",
    FORCED: "generalization (token accuracy)",
    "locality": "locality prompts answered",
    "same_form": "same-form prompts answered",
    "windows": "held-out windows answered",
}
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "grace": {"relative_radius": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)},
    "grace_wide": {"relative_radius": (0.1, 0.25), "widen": (1.25, 1.5, 2.0, 3.0)},
    "wise_whitened": {"weight": (3.5, 7.0, 14.0, 28.0), "margin": (0.6, 0.8)},
    "wise_paper": {"lr": (0.06, 0.12, 0.25, 0.5), "margin_scale": (4.0, 16.0)},
}
"""What is tuned of each editor: eight trials each, all combinations. In a first grid of `wise_paper`, lr 0.25 to 2 and
margin_scale 1 and 4, the smallest rates and the larger margins were the best, so that it was moved once that way."""
SCALES = dict.fromkeys(GRIDS, (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0))
SCALES["grace"] = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""The points of a curve: what the chosen radius, its widening, or the threshold that the editor set is multiplied
by."""
options = asking(
    *("--model", "--anew"),
    editors=some_of(GRIDS),
    facts=(FILES / "zsre.json", "facts to tune on, and unrelated ones"),
    fresh=(FILES / "zsre_fresh.json", "facts of the curves"),
    offset=(400, "facts of --facts before those that are tuned on"),
    count=(25, "how many are tuned on; after them: other subjects"),
    t=(100, "facts of --fresh that are edited; after them: the same"),
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected:
    """The trials of each editor that has none yet, and its curve with the settings of the best."""
    editors = chosen(arguments.editors, GRIDS, "editor")
    found = kept(NAME, arguments) or Collected({}, {})
    figures, runs = found.figures, found.runs
    lm, n = load(arguments.model), arguments.count
    # What both WISE learn to leave alone: with locality prompts of facts after those that are tuned on.
    unrelated = Unrelated(facts=str(arguments.facts), offset=arguments.offset + 2 * n, limit=200)

    def step(key: str, part: Part, editors: Sequence[str], find: Callable[[Shared, str], dict[str, Any]]) -> None:
        if editors:
            shared = Shared(lm, part, arguments.work / lm.fingerprint[:8] / key, unrelated)
            told = {"model": lm.name, "facts": part.described, "before": shared.measured()}
            figures[key] = figures.get(key, {"editors": {}}) | told
            for name in editors:
                figures[key]["editors"][name], runs[f"{key} {name}"] = shared.noted(name, partial(find, shared, name))

    facts = read_facts(arguments.facts, offset=arguments.offset, limit=2 * n, on_error="skip")
    places = f"facts {arguments.offset + 1} to {arguments.offset + n} of {arguments.facts.name}"
    part = Part(facts[:n], facts[n:], f"{places}; other subjects: the {n} after them")
    step("tune", part, [name for name in editors if name not in figures.get("tune", {"editors": {}})["editors"]], tune)
    settings = {name: figures["tune"]["editors"][name]["chosen"] for name in editors}
    # Nothing was chosen on these.
    facts, n = read_facts(arguments.fresh, on_error="skip"), arguments.t
    others = f"other subjects: the {len(facts) - n} after them"
    part = Part(facts[:n], facts[n:], f"the first {n} of {arguments.fresh.name}; {others}")
    step("collect", part, editors, lambda shared, name: curve(shared, name, settings[name]))
    return found


def tune(shared: Shared, name: str) -> dict[str, Any]:
    """The trials of an editor, and the settings of the best; the first of several."""
    trials = [shared.trial(name, settings) for settings in combinations(GRIDS[name])]
    return {"trials": trials, "chosen": max(trials, key=objective)["settings"]}


def curve(shared: Shared, name: str, settings: Mapping[str, float]) -> dict[str, Any]:
    """The points of an editor's curve, with the settings that were chosen."""
    return {"settings": dict(settings), "points": [shared.scaled(name, settings, scale) for scale in SCALES[name]]}


def digest(figures: Data) -> dict[str, Any]:
    """Of each point the shares, of each limit the best point and the differences of `COMPARED`; what the trials say."""
    editors = figures["collect"]["editors"]
    points = {name: [shares(point) for point in each["points"]] for name, each in editors.items()}
    places = {name: [best(each, limit) for limit in LIMITS] for name, each in points.items()}
    less: dict[str, Any] = {}
    for key in (FREE, FORCED) if set(COMPARED) <= set(editors) else ():
        sides = ([editors[n]["points"][at]["figures"][key] for at in places[n]] for n in COMPARED)
        gaps = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(*sides, strict=True)]
        less[key] = [mean(each, range(len(each))) for each in gaps]
    tuned = {}
    for name, each in figures["tune"]["editors"].items():
        results = {json.dumps([one.get("figures"), one.get("answered")], sort_keys=True) for one in each["trials"]}
        best_of = max(map(objective, each["trials"]))
        tuned[name] = {"objective": best_of, "differ": len(results), "edge": at_edge(each)}
    told = {"limits": LIMITS, "limit": LIMIT, "compared": COMPARED, "keys": (EDITS, FREE, FORCED), "kinds": KINDS}
    return {**told, "points": points, "places": places, "less": less, "tuned": tuned}


def shares(point: Data) -> dict[str, Any]:
    """What a point answers rightly and wrongly; "wrongly" is the largest share over the kinds of prompts."""
    # Each value is of a subject of its own.
    values = {**point["figures"], **point["answered"]}
    found = {key: mean(each, range(len(each)), shares=True) for key, each in values.items()}
    return {"scale": point["scale"], "wrongly": max(found[kind]["mean"] or 0.0 for kind in KINDS), **found}


def best(points: Sequence[Data], limit: float) -> int:
    """The place of the point that answers the most paraphrases freely, of those at most so much of wrongly (in %)."""
    # Where there is none, of the one that answers least wrongly.
    within = [at for at, point in enumerate(points) if point["wrongly"] <= limit / 100]
    least = min(range(len(points)), key=lambda at: points[at]["wrongly"])
    return max(within, key=lambda at: points[at][FREE]["mean"], default=least)


def shown(data: Data) -> dict[str, Any]:
    ships = {"widen": preset_values("grace_wide")["widen"], "tokens": SETTINGS.max_new_tokens}
    return {**data["figures"], **data["digest"], **ships}


def draw(data: Data, path: Path) -> None:
    """Right answers over wrong ones: a panel for each pair of them, a line for each editor."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 10), layout="constrained")
    axes = figure.subplots(3, len(KINDS), squeeze=False)
    for panel, (key, kind) in zip(axes.flat, itertools.product((EDITS, FREE, FORCED), KINDS), strict=True):
        for name, points in data["digest"]["points"].items():
            xs, ys = ([100 * point[of]["mean"] for point in points] for of in (kind, key))
            [line] = panel.plot(xs, ys, marker=".", label=name)
            own = [at for at, point in enumerate(points) if point["scale"] == 1]
            panel.plot([xs[at] for at in own], [ys[at] for at in own], "o", color=line.get_color(), fillstyle="none")
        panel.set(xlabel=f"{TITLES[kind]} (%)", ylabel=f"{TITLES[key]} (%)", xlim=(-3, 103), ylim=(-3, 103))
    axes[0][0].legend()
    figure.savefig(path, dpi=110)


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, shown, pictures={f"{NAME}.png": draw})
if __name__ == "__main__":
    REPORT.main()
