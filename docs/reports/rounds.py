"""docs/rounds.md: why the facts of an edit are written more than once, and how often.

    python docs/reports/rounds.py collect [--variants 1,2,3] [--minutes 30]
    python docs/reports/rounds.py page

All facts are written in one edit of the unedited model, by an ordinary run of run.py for each variant, in a store. What
is finished is not done again, and what was cut short goes on. What the data file has and the store has not is kept;
--anew forgets it. `pages.py` says more of the steps.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from many_facts import facts_at, points_of
from many_facts_methods import DATA, TOGETHER
from many_facts_page import paired, unsaid
from pages import ROOT, Collected, Report, keeping_option, kept
from runs import chosen, finished, how_made, picked, run, without_generation
from words import written

from corrigenda.data import read_facts, write_facts
from corrigenda.runs.store import Store
from eval import METRICS
from eval.protocols.curves import value_at
from eval.statistics.comparison import Comparison
from eval.statistics.paired import holm

NAME = "rounds"
SCRIPT = "rounds.py"
FACTS = "332-400,441-671"
"""Of zsRE's file, none of them on docs/many_facts.md: the ways below were chosen among on these."""
SCORED = 100
SETTINGS = ("eval.max_new_tokens=20",)
"""As on docs/many_facts.md."""
KEYS = (
    "token_accuracy",
    "paraphrase_token_accuracy",
    "free_generation_strict",
    "paraphrase_free_generation_strict",
    "preservation",
    "locality_kl",
    "perplexity_drift",
)
TESTED = ("free_generation_strict", "paraphrase_free_generation_strict", "paraphrase_token_accuracy")
"""What variants are compared by."""


@dataclass(frozen=True)
class Variant:
    """A way to write the facts.

    Attributes:
        title: in tables.
        settings: what differs from `editor=memit_rounds`.
    """

    title: str
    settings: tuple[str, ...] = ()


ONCE = ("editor.rounds=1",)
VARIANTS: dict[str, Variant] = {
    "1": Variant("one round (ratio 10, five layers)", ONCE),
    "2": Variant("two rounds", ("editor.rounds=2",)),
    "3": Variant("three rounds", ("editor.rounds=3",)),
    "4": Variant("four rounds", ("editor.rounds=4",)),
    "ratio-1": Variant("one round, ratio 1", (*ONCE, "editor.ratio=1")),
    "ratio-30": Variant("one round, ratio 30", (*ONCE, "editor.ratio=30")),
    "layers-3": Variant("one round, three layers", (*ONCE, "editor.number=3")),
    "layers-1": Variant("one round, one layer", (*ONCE, "editor.number=1")),
}
"""By the name of its folder. All have their last layer in common, and so the targets of the first round."""

COMPARISONS = (
    ("2", "1"),
    ("3", "2"),
    ("4", "3"),
    ("ratio-1", "1"),
    ("ratio-30", "1"),
    ("layers-3", "1"),
    ("layers-1", "1"),
)
"""Which one is compared with which."""


# -- the first step


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--model", default="smollm2-135m", help="its name in conf/model")
    parser.add_argument("--data", default="zsre", choices=tuple(DATA))
    parser.add_argument("--files", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data files")
    parser.add_argument("--facts", default=FACTS, help="which of the file's, the first is 1")
    parser.add_argument("--scored", type=int, default=SCORED, help="the most facts scored: the first and the latest")
    parser.add_argument("--variants", default="", help=f"comma-separated, of {', '.join(VARIANTS)}; by default all")
    parser.add_argument("--store", type=Path, default=ROOT / "outputs" / NAME)
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long, to go on another time")
    keeping_option(parser)
    parser.add_argument("overrides", nargs="*", help="of the configuration, for all runs")


def collect(arguments: argparse.Namespace) -> Collected | None:
    """All edits; None where the time was up before all was done."""
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    path = arguments.files / DATA[arguments.data][0]
    facts = picked(read_facts(path, on_error="skip"), arguments.facts)
    about = {
        "model": arguments.model,
        "data": path.name,
        "facts": arguments.facts,
        "n": len(facts),
        "scored": min(arguments.scored, len(facts)),
    }
    earlier = kept(NAME, arguments)
    if earlier and (other := [key for key, value in about.items() if earlier.figures[key] != value]):
        raise SystemExit(f"the data file differs in {', '.join(other)}: give --anew to write it again")
    store = arguments.store.resolve()
    written = store / "facts.jsonl"
    write_facts(written, without_generation(facts))
    variants: dict[str, Any] = {}
    runs = {}
    for name in chosen(arguments.variants, VARIANTS, "variant"):
        place = Store(store / name)
        overrides = [
            *("mode=sequential", "data=facts", f"data.path={written}", f"data.limit={len(facts)}"),
            *(f"model={arguments.model}", "editor=memit_rounds", *VARIANTS[name].settings),
            *(*TOGETHER, f"job.sequential.checkpoints=[{len(facts)}]", "job.sequential.after_each=edited"),
            *(f"job.sequential.scored={arguments.scored}", "job.most_failures=1"),
            *(f"store={place.root}", f"before={store / 'before'}", *SETTINGS, *arguments.overrides),
        ]
        if not finished(place) and not run(overrides, place, deadline):
            return None
        for stored in finished(place)[:1]:
            [point] = [point for point in points_of(stored.path) if point["t"] == len(facts)]
            by_key = {key: facts_at(stored, len(facts), key) for key in KEYS if not METRICS[key].one_value}
            variants[name] = {"points": [point], "facts": by_key}
            runs[name] = how_made(stored)
    if not variants:
        raise SystemExit(f"{store}: no edit succeeded")
    if earlier:
        variants, runs = earlier.figures["variants"] | variants, {**earlier.runs, **runs}
    return Collected(about | {"variants": variants}, runs, earlier.earlier if earlier else ())


# -- the statistics


def digest(figures: Mapping[str, Any]) -> dict[str, Any]:
    """By two variants and a metric the difference on the same facts, with p corrected for all of these; and the drift.

    And the metrics that say something here.
    """
    variants = figures["variants"]
    found = {(*pair, key): test for pair in COMPARISONS for key in TESTED if (test := tested(variants, *pair, key))}
    corrected = holm([test.p for test in found.values()]) if found else []
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for ((left, right, key), test), p in zip(found.items(), corrected, strict=True):
        row = rows.setdefault((left, right), {"left": left, "right": right, "tests": {}})
        row["tests"][key] = {"difference": test.difference, "low": test.low, "high": test.high, "p": p}
    for (left, right), row in rows.items():
        drifts = [value_at(variants[side]["points"][0], "perplexity_drift") for side in (left, right)]
        row["drift"] = drifts[0]["after"] - drifts[1]["after"] if all(drifts) else None
    silent = unsaid(variants)
    return {
        "titles": {name: one.title for name, one in VARIANTS.items() if name in variants},
        "columns": [key for key in KEYS if key not in silent],
        "tested": TESTED,
        "compared": list(rows.values()),
        "n_tests": len(found),
    }


def tested(variants: Mapping[str, Any], left: str, right: str, key: str) -> Comparison | None:
    """Two variants by a metric; None where one is lacking."""
    sides = [variants[name]["facts"].get(key) if name in variants else None for name in (left, right)]
    return paired(*sides, key)


REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, written(NAME, SCRIPT), digest)

if __name__ == "__main__":
    REPORT.main()
