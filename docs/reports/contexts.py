"""docs/contexts.md: how many contexts, and how many steps, ROME needs.

    python docs/reports/contexts.py collect [--facts 200] [--minutes 30] [--write] [--commit 9a4ea88]
    python docs/reports/contexts.py page

Each fact is edited alone by every variant, one after another. What is finished is kept in the work folder, in one
folder of records for each variant, and the first command goes on where it was stopped. `pages.py` says more of the
steps.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from layers import edited
from pages import ROOT, UNKNOWN, Collected, Made, Report, add_note, made, making, mean, way_of
from words import written

from corrigenda import Fact, load
from corrigenda.data import read_facts
from corrigenda.moments.text import Text
from corrigenda.runs.environment import machine, versions
from corrigenda.runs.folder import RunFolder
from editing import Rome, ValueSettings
from eval import METRICS, Case, EvalSettings, measure
from eval.leaderboard.recompute import recomputed
from eval.statistics.paired import holm, paired_test

NAME = "contexts"
SCRIPT = "contexts.py"
SETTINGS = EvalSettings(max_new_tokens=10, perplexity_windows=0)
USES = ("editing.Rome", "eval.evaluation", "eval.measure")
"""What the figures are made with: the code version of all of them is of the files of these."""

KEYS = (
    "efficacy_success",
    "paraphrase_success",
    "neighbourhood_success",
    "efficacy_magnitude",
    "paraphrase_magnitude",
    "neighbourhood_magnitude",
    "token_accuracy",
    "paraphrase_token_accuracy",
    "free_generation_strict",
    "paraphrase_free_generation_strict",
    "neighbourhood_kl",
)
SECONDS = "seconds"


@dataclass(frozen=True)
class Variant:
    """A way to make ROME's edits.

    Attributes:
        what: in a few words.
        editor: the editor.
    """

    what: str
    editor: Rome


def few(confident: int | None = None) -> Rome:
    """ROME with the bare prompt and five contexts of ten tokens; with the early stop, where it is given."""
    return Rome(prefix_lengths=((10, 5),), text=Text("self"), value=ValueSettings(confident_steps=confident))


VARIANTS: dict[str, Variant] = {
    "20": Variant("1 + 20 contexts", Rome(prefix_lengths=((5, 10), (10, 10)), text=Text("self"))),
    "5": Variant("1 + 5 contexts", few()),
    "5-confident-3": Variant("1 + 5 contexts, `confident_steps=3`", few(3)),
    "5-confident-6": Variant("1 + 5 contexts, `confident_steps=6`", few(6)),
}
"""By the name of its folder."""

COMPARISONS = (("5", "20"), ("5-confident-6", "5"), ("5-confident-3", "5"))
"""Pairs of variants: which one is compared with which."""


# -- the first step


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "counterfact.json")
    parser.add_argument("--offset", type=int, default=1000, help="facts of the file that are passed over")
    parser.add_argument("--facts", type=int, default=200)
    parser.add_argument("--variants", default="", help=f"comma-separated, of {', '.join(VARIANTS)}; by default all")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop (to go on later) after so long")
    parser.add_argument("--write", action="store_true", help="edit nothing, write what there is")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "contexts")
    parser.add_argument(
        "--commit",
        default=UNKNOWN,
        help="of the records in the work folder of which nothing is noted: they were made with these packages, on this "
        "machine, by the code of this commit",
    )


def collect(arguments: argparse.Namespace) -> Collected | None:
    """Edits all facts by all variants; None where the time was up before all was done."""
    names = [name for name in arguments.variants.split(",") if name] or list(VARIANTS)
    if unknown := set(names) - set(VARIANTS):
        raise SystemExit(f"no such variant: {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    source = read_facts(arguments.data, offset=arguments.offset, limit=arguments.facts)
    facts = [replace(fact, generation=()) for fact in source]
    folders = {name: RunFolder(arguments.work / name) for name in names}
    if not arguments.write and not run(arguments, facts, folders):
        return None
    records = {name: {record["id"]: record for record in folder.cases()} for name, folder in folders.items()}
    common = [fact for fact in facts if all(fact.id in found for found in records.values())]
    if not common:
        raise SystemExit(f"{arguments.work}: no fact is edited by all of {', '.join(names)} yet")
    runs = {name: how_made(folder.path, arguments.commit) for name, folder in folders.items()}
    figures = {
        "model": arguments.model,
        "data": arguments.data.name,
        "first": arguments.offset + 1,
        "last": arguments.offset + len(facts),
        "subjects": [fact.subject for fact in common],
        "variants": {name: of_variant([records[name][fact.id] for fact in common]) for name in names},
    }
    pairs = [pair for pair in COMPARISONS if set(pair) <= set(names)]
    figures["timed_alike"] = [list(pair) for pair in pairs if made_alike(*(runs[name] for name in pair))]
    return Collected(figures, runs)


def run(arguments: argparse.Namespace, facts: Sequence[Fact], folders: Mapping[str, RunFolder]) -> bool:
    """Edits and scores what is not done yet; False where the time was up."""
    deadline = time.monotonic() + 60 * arguments.minutes
    done = {name: {record["id"] for record in folder.cases()} for name, folder in folders.items()}
    lacking = [name for name in folders if any(fact.id not in done[name] for fact in facts)]
    if not lacking:
        return True
    for name in lacking:
        if done[name] and not made(folders[name].path):  # else these would count as made by this code
            if arguments.commit == UNKNOWN:
                raise SystemExit(f"{folders[name].path}: nothing says how these records were made; give --commit")
            add_note(folders[name].path, earlier(arguments.commit))
    lm = load(arguments.model)
    begun, n = time.monotonic(), 0
    total = sum(fact.id not in done[name] for name in lacking for fact in facts)
    print(f"{total} edits are left", flush=True)
    with ExitStack() as stack:
        for name in lacking:  # two of these commands at once would do the same twice
            stack.enter_context(folders[name].held())
            stack.enter_context(making(folders[name].path, USES))
        for fact in facts:
            missing = [name for name in lacking if fact.id not in done[name]]
            if not missing:
                continue
            [before] = measure(lm, [fact], SETTINGS)
            for name in missing:
                if time.monotonic() > deadline:
                    return False
                folders[name].append(edited(lm, fact, before, VARIANTS[name].editor, SETTINGS).to_dict())
                n += 1
            left = (time.monotonic() - begun) / n * (total - n)
            print(f"{fact.id}: {n} of {total} edits, about {left / 60:.0f} minutes left", flush=True)
    return True


def of_variant(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of each fact, by the present definitions, whenever it was edited; those that all facts have."""
    cases = [recomputed(Fact.from_dict(record["fact"]), record) for record in records]
    found = {state: by_key(cases, state) for state in ("before", "after")}
    return {
        "before": {key: fmean(values) for key, values in found["before"].items()},
        "facts": found["after"] | {SECONDS: [record["seconds"] for record in records]},
        "failed": sum(bool(case.error) for case in cases),
    }


def by_key(cases: Sequence[Case], state: str) -> dict[str, list[float]]:
    """Of the metrics that all cases have, the value of each."""
    values = [getattr(case, state).values for case in cases]
    return {key: [one[key] for one in values] for key in KEYS if all(key in one for one in values)}


def made_alike(one: Made, other: Made) -> bool:
    """Whether seconds can be compared: those of another machine, or of other code, say nothing."""
    ways, others = ([way_of(entry) for entry in made] for made in (one, other))
    return all(way in others for way in ways) and all(way in ways for way in others)


def how_made(folder: Path, commit: str) -> Made:
    """How a variant's records were made; of those of which nothing is noted the commit is what the user says."""
    return made(folder) or ([] if commit == UNKNOWN else [earlier(commit)])


def earlier(commit: str) -> dict[str, Any]:
    """A note of records that were made by a commit, with these packages, on this machine."""
    told = {"code": f"{UNKNOWN}, of commit {commit}", "commit": commit, "versions": versions(), "machine": machine()}
    return told | {"begun": None, "ended": None, "load": [None, None]}


# -- the statistics


def digest(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The means of each metric by variant, and the `differences` of `COMPARISONS`, with p corrected for all of them."""
    variants, subjects = figures["variants"], figures["subjects"]
    names = [name for name in VARIANTS if name in variants]
    compared = []
    for left, right in COMPARISONS:
        if left in names and right in names:
            alike = [left, right] in figures["timed_alike"]
            sides = (variants[name]["facts"] for name in (left, right))
            one, other = ({key: of[key] for key in of if alike or key != SECONDS} for of in sides)
            compared.append({"left": left, "right": right, "tests": differences(one, other, subjects)})
    tests = [test for one in compared for test in one["tests"].values()]
    for test, p in zip(tests, holm([test["p"] for test in tests]) if tests else (), strict=True):
        test["p"] = p
    rows = {
        key: [mean(variants[name]["facts"][key], subjects, METRICS[key].is_share) for name in names]
        for key in KEYS
        if all(key in variants[name]["facts"] for name in names)
    }
    return {"named": {name: VARIANTS[name].what for name in names}, "rows": rows, "compared": compared}


def differences(
    left: Mapping[str, Sequence[float]], right: Mapping[str, Sequence[float]], subjects: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """By metric the difference of two variants with its interval, and the p-value of a paired test."""
    return {
        key: mean([a - b for a, b in zip(left[key], right[key], strict=True)], subjects)
        | {"p": paired_test(left[key], right[key], groups=subjects)}
        for key in (*KEYS, SECONDS)
        if key in left and key in right
    }


PAGE = written(NAME, SCRIPT)
REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, PAGE, digest)

if __name__ == "__main__":
    REPORT.main()
