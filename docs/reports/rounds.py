"""docs/rounds.md: why the facts of an edit are written more than once, and how often.

    python docs/reports/rounds.py collect [--variants 1,2,3] [--minutes 30]
    python docs/reports/rounds.py page

All facts are written in one edit of the unedited model, by an ordinary run of run.py for each variant, in a store. What
is finished is not done again, and what was cut short goes on. What the data file has and the store has not is kept;
--anew forgets it. `pages.py` says more of the two steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from many_facts import (
    DATA,
    TOGETHER,
    chosen,
    difference,
    facts_at,
    gap_over_orders,
    headings,
    paired,
    points_of,
    unsaid,
    without_generation,
    write_lines,
)
from pages import ROOT, Collected, Report, keeping_option, kept, markdown, provenance
from runs import finished, how_made, run
from words import ALPHA, chance, paragraph

from corrigenda import Fact
from corrigenda.data import FactSet, read_facts
from corrigenda.runs.store import Store
from eval import METRICS
from eval.protocols.curves import cell, value_at
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
    write_lines(written, without_generation(facts))
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


def picked(facts: FactSet, ranges: str) -> FactSet:
    """The facts of some ranges, as "3-5,8-9": the third to the fifth, the eighth and the ninth.

    Raises:
        SystemExit: a range is not one, or goes beyond the file.
    """
    found: list[Fact] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= len(facts)):
            raise SystemExit(f"--facts {part}: write FIRST-LAST, of the {len(facts)} facts of the file")
        found += facts[int(first) - 1 : int(last)]
    return FactSet(facts.name, tuple(found))


# -- the second step


def text(data: Mapping[str, Any]) -> Iterator[str]:
    """The page's lines."""
    figures = data["figures"]
    variants = {name: figures["variants"][name] for name in VARIANTS if name in figures["variants"]}
    tests = tested(variants)
    yield from ("# Facts written more than once", "")
    yield from finding(figures["n"], variants, tests)
    yield from paragraph(
        *f"""Facts {figures["facts"].replace(",", " and ")} of {figures["data"]} are written into {figures["model"]} by
        `editor=memit_rounds` with what the rows name; a further round writes the same facts again, with targets of the
        model with what was written so far. {figures["scored"]} are scored, the first and the last. **The number of
        rounds was chosen on these facts**: [many_facts.md](many_facts.md) has others. The model's other answers are
        blank here, so that what stays is told by the perplexity's drift alone. *Reliability* and *generalization* are
        the token accuracy on prompts and paraphrases. Rates in %, drift in nats, with 95 %
        intervals over subjects (drift: over windows of text).""".split()
    )
    columns = [key for key in KEYS if key not in unsaid(variants)]
    yield from ("", f"| | {' | '.join(headings(columns).values())} |", "|---" * (1 + len(columns)) + "|")
    for name, variant in variants.items():
        cells = [cell(value_at(variant["points"][0], key), key) for key in columns]
        yield f"| {VARIANTS[name].title} | {' | '.join(cells)} |"
    names = [part for heading in headings(TESTED).values() for part in (heading, "p")]
    yield from ("", f"One less the other, on the same facts, with p by Holm for {len(tests)} tests:", "")
    yield from (f"| | {' | '.join(names)} | drift |", "|---" * (2 + len(names)) + "|")
    for left, right in dict.fromkeys(pair[:2] for pair in tests):
        cells = [part for key in TESTED for part in tests.get((left, right, key), ("", 1.0))]
        cells = [cell if isinstance(cell, str) else chance(cell) for cell in cells]
        drift = gap_over_orders([(variants[left]["points"][0], variants[right]["points"][0])], "perplexity_drift")
        yield f"| {VARIANTS[left].title} less {VARIANTS[right].title} | {' | '.join(cells)} | {drift} |"
    yield from provenance(NAME, data, SCRIPT)


def tested(variants: Mapping[str, Any]) -> dict[tuple[str, str, str], tuple[str, float]]:
    """By two variants and a metric the difference on the same facts, and its p-value corrected for all of these."""
    found = {
        (left, right, key): test
        for left, right in COMPARISONS
        if left in variants and right in variants
        for key in TESTED
        if (test := paired(*(variants[side]["facts"].get(key) for side in (left, right)), key))
    }
    corrected = holm([test.p for test in found.values()]) if found else []
    return {place: (difference(test, place[2]), p) for (place, test), p in zip(found.items(), corrected, strict=True)}


def finding(
    n: int, variants: Mapping[str, Any], tests: Mapping[tuple[str, str, str], tuple[str, float]]
) -> Iterator[str]:
    """What a second and a third round did, and what to do; nothing where they were not compared."""
    second, third = ([tests.get((*pair, key)) for key in TESTED] for pair in (("2", "1"), ("3", "2")))
    if not all(second) or not all(third):
        return
    said = {name: cell(value_at(one["points"][0], TESTED[0]), TESTED[0]) for name, one in variants.items()}
    apart = [name for test, name in zip(third, headings(TESTED).values(), strict=True) if test and test[1] < ALPHA]
    yield from paragraph(
        *f"""**Of {n} zsRE facts in one edit the model says {said["1"]} % when they are written once and {said["2"]} %
        when they are written twice.** A third round is told apart from two in {" and ".join(apart) or "nothing"}
        (of the {len(TESTED)} figures tested below).""".split()
    )
    yield from (
        "",
        "- Take `memit_rounds`, which has three, for questions whose answers have several words, all in one edit.",
        "- None of the other weights of the text and numbers of layers that were tried is a way around it.",
        "",
    )


REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, markdown(NAME, text))

if __name__ == "__main__":
    REPORT.main()
