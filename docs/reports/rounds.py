"""docs/rounds.md: why the facts of an edit are written more than once, and how often.

All facts are written in one edit of the unedited model, by an ordinary run of run.py for each variant, in a store. What
the data file has and the store has not is kept.
"""

from typing import Any, NamedTuple

from many_facts import facts_at, points_of
from many_facts_methods import DATA, TOGETHER
from many_facts_page import paired, unsaid
from options import OUTPUTS, Data, Options, asking, deadline_of, some_of
from pages import Collected, kept
from report import Report
from rows import after_at, corrected
from runs import chosen, finished, how_made, picked, run, without_generation

from corrigenda.data import read_facts, write_facts
from corrigenda.runs.store import Store
from eval import METRICS

NAME, SCRIPT = "rounds", "rounds.py"
FACTS = "332-400,441-671"
"""Of zsRE's file, none of them on docs/many_facts.md: the ways below were chosen among on these."""
SCORED = 100
SETTINGS = ("eval.max_new_tokens=20",)  # as on docs/many_facts.md
KEYS = (
    *("token_accuracy", "paraphrase_token_accuracy", "free_generation_strict", "paraphrase_free_generation_strict"),
    *("preservation", "locality_kl", "perplexity_drift"),
)
TESTED = ("free_generation_strict", "paraphrase_free_generation_strict", "paraphrase_token_accuracy")
"""What variants are compared by."""


class Variant(NamedTuple):
    """A way to write the facts: its title in tables, and what differs from `editor=memit_rounds`."""

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
}  # by the name of its folder. All have their last layer in common, and so the targets of the first round
COMPARISONS = (  # which one is compared with which
    *(("2", "1"), ("3", "2"), ("4", "3")),
    *((one, "1") for one in ("ratio-1", "ratio-30", "layers-3", "layers-1")),
)
options = asking(
    *("--model", "--files", "--minutes", "--anew", "overrides"),
    data=("zsre", f"one of {', '.join(DATA)}"),
    facts=(FACTS, "which of the file's, the first is 1"),
    scored=(SCORED, "the most facts scored: the first and the latest"),
    variants=some_of(VARIANTS),
    store=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected | None:
    deadline = deadline_of(arguments)
    path = arguments.files / DATA[arguments.data][0]
    facts = picked(read_facts(path, on_error="skip"), arguments.facts)
    about = {"model": arguments.model, "data": path.name, "facts": arguments.facts, "n": len(facts)}
    about["scored"] = min(arguments.scored, len(facts))
    found = kept(NAME, arguments) or Collected({**about, "variants": {}}, {})
    if other := [key for key, value in about.items() if found.figures[key] != value]:
        raise SystemExit(f"the data file differs in {', '.join(other)}: give --anew to write it again")
    store = arguments.store.resolve()
    write_facts(store / "facts.jsonl", without_generation(facts))
    for name in chosen(arguments.variants, VARIANTS, "variant"):
        place = Store(store / name)
        overrides = [
            *("mode=sequential", "data=facts", f"data.path={store / 'facts.jsonl'}", f"data.limit={len(facts)}"),
            *(f"model={arguments.model}", "editor=memit_rounds", *VARIANTS[name].settings),
            *(*TOGETHER, f"job.sequential.checkpoints=[{len(facts)}]", "job.sequential.after_each=edited"),
            *(f"job.sequential.scored={arguments.scored}", "job.most_failures=1"),
            *(f"store={place.root}", f"before={store / 'before'}", *SETTINGS, *arguments.overrides),
        ]
        if not finished(place) and not run(overrides, place, deadline):
            return None
        for stored in finished(place)[:1]:
            points = [point for point in points_of(stored.path) if point["t"] == len(facts)]
            by_key = {key: facts_at(stored, len(facts), key) for key in KEYS if not METRICS[key].one_value}
            found.figures["variants"][name] = {"points": points, "facts": by_key}
            found.runs[name] = how_made(stored)
    if not found.figures["variants"]:
        raise SystemExit(f"{store}: no edit succeeded")
    return found


def digest(figures: Data) -> dict[str, Any]:
    """By two variants and a metric the difference on the same facts, with p corrected for all; and the drift."""
    variants = figures["variants"]
    rows: list[dict[str, Any]] = []
    for left, right in (pair for pair in COMPARISONS if variants.keys() >= set(pair)):
        sides = [variants[left], variants[right]]
        one, other = (side["facts"] for side in sides)
        tests = {key: paired(one.get(key), other.get(key), key) for key in TESTED}
        parts = ("difference", "low", "high", "p")
        told = {key: {of: getattr(test, of) for of in parts} for key, test in tests.items() if test}
        drifts = [after_at(side["points"][0], "perplexity_drift") for side in sides]
        gap = None if drifts[0] is None or drifts[1] is None else drifts[0] - drifts[1]
        rows += [{"left": left, "right": right, "tests": told, "drift": gap}] if told else []
    corrected(every := [test for row in rows for test in row["tests"].values()])
    silent = unsaid(variants)
    return {
        "titles": {name: one.title for name, one in VARIANTS.items() if name in variants},
        "columns": [key for key in KEYS if key not in silent],
        "tested": TESTED,
        "compared": rows,
        "n_tests": len(every),
    }


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest)
if __name__ == "__main__":
    REPORT.main()
