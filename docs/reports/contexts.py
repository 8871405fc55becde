"""docs/contexts.md: how many contexts, and how many steps, ROME needs. Each fact is edited alone by every variant."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from statistics import fmean
from typing import Any

from layers import edited
from options import FILES, OUTPUTS, Data, Options, asking, deadline_of, some_of
from pages import Collected, made, mean, way_of
from report import Report
from rows import corrected
from runs import chosen, without_generation
from work import records

from corrigenda import Fact, load, read_facts
from corrigenda.moments.text import Text
from corrigenda.runs.folder import RunFolder
from editing import Rome, ValueSettings
from eval import METRICS, EvalSettings, measure, paired_test
from eval.leaderboard.recompute import recomputed

NAME, SCRIPT = "contexts", "contexts.py"
SETTINGS = EvalSettings(max_new_tokens=10, perplexity_windows=0)
USES = ("editing.Rome", "eval.evaluation", "eval.measure")
KEYS = (
    *("efficacy_success", "paraphrase_success", "neighbourhood_success", "efficacy_magnitude"),
    *("paraphrase_magnitude", "neighbourhood_magnitude", "token_accuracy", "paraphrase_token_accuracy"),
    *("free_generation_strict", "paraphrase_free_generation_strict", "neighbourhood_kl"),
)
SECONDS = "seconds"


def few(confident: int | None = None) -> Rome:
    """ROME with the bare prompt and five contexts of ten tokens; with the early stop, where it is given."""
    return Rome(prefix_lengths=((10, 5),), text=Text("self"), value=ValueSettings(confident_steps=confident))


VARIANTS: dict[str, tuple[str, Rome]] = {  # by the name of its folder, in a few words, and the editor
    "20": ("1 + 20 contexts", Rome(prefix_lengths=((5, 10), (10, 10)), text=Text("self"))),
    "5": ("1 + 5 contexts", few()),
    "5-confident-3": ("1 + 5 contexts, `confident_steps=3`", few(3)),
    "5-confident-6": ("1 + 5 contexts, `confident_steps=6`", few(6)),
}
COMPARISONS = (("5", "20"), ("5-confident-6", "5"), ("5-confident-3", "5"))
"""Pairs of variants: which one is compared with which."""
options = asking(
    *("--model", "--minutes", "--write"),
    data=FILES / "counterfact.json",
    offset=(1000, "facts of the file that are passed over"),
    facts=200,
    variants=some_of(VARIANTS),
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected:
    names = chosen(arguments.variants, VARIANTS, "variant")
    facts = without_generation(read_facts(arguments.data, offset=arguments.offset, limit=arguments.facts))
    folders = {name: RunFolder(arguments.work / name) for name in names}
    if not arguments.write:
        run(arguments, facts, folders)
    found = {name: {record["id"]: record for record in folder.cases()} for name, folder in folders.items()}
    common = [fact for fact in facts if all(fact.id in there for there in found.values())]
    if not common:
        raise SystemExit(f"{arguments.work}: no fact is edited by all of {', '.join(names)} yet")
    runs = {name: made(folder.path) for name, folder in folders.items()}
    ways = {name: [way_of(entry) for entry in entries] for name, entries in runs.items()}

    def made_alike(one: str, other: str) -> bool:
        """Whether seconds can be compared: those of another machine, or of other code, say nothing."""
        return all(way in ways[b] for a, b in ((one, other), (other, one)) for way in ways[a])

    figures = {
        **{"model": arguments.model, "data": arguments.data.name},
        **{"first": arguments.offset + 1, "last": arguments.offset + len(facts)},
        "subjects": [fact.subject for fact in common],
        "variants": {name: of_variant([found[name][fact.id] for fact in common]) for name in names},
        "timed_alike": [list(pair) for pair in COMPARISONS if set(pair) <= set(names) and made_alike(*pair)],
    }
    return Collected(figures, runs)


def run(arguments: Options, facts: Sequence[Fact], folders: Mapping[str, RunFolder]) -> None:
    """Edits and scores what is not done yet, fact by fact: so seconds of all variants are of the same times."""
    deadline = deadline_of(arguments)
    lm = cache(lambda: load(arguments.model))
    before = cache(lambda fact: measure(lm(), [fact], SETTINGS)[0])

    def find(fact: Fact, name: str) -> dict[str, Any]:
        return edited(lm(), fact, before(fact), VARIANTS[name][1], SETTINGS).to_dict()

    with ExitStack() as held:
        for folder in folders.values():  # two of these commands at once would do the same twice
            held.enter_context(folder.held())
        in_turn = [records(one.path, facts, partial(find, name=name), USES, deadline) for name, one in folders.items()]
        for _ in zip(*in_turn, strict=True):
            pass


def of_variant(records: Sequence[Data]) -> dict[str, Any]:
    """The figures of each fact, by the present definitions, whenever it was edited; those that all facts have."""
    cases = [recomputed(Fact.from_dict(record["fact"]), record) for record in records]
    sides = {state: [getattr(case, state).values for case in cases] for state in ("before", "after")}
    found = {
        state: {key: [one[key] for one in values] for key in KEYS if all(key in one for one in values)}
        for state, values in sides.items()
    }
    return {
        "before": {key: fmean(values) for key, values in found["before"].items()},
        "facts": found["after"] | {SECONDS: [record["seconds"] for record in records]},
        "failed": sum(bool(case.error) for case in cases),
    }


def digest(figures: Data) -> dict[str, Any]:
    """The means of each metric by variant, and the `differences` of `COMPARISONS`, with p corrected for all of them."""
    variants, subjects = figures["variants"], figures["subjects"]
    names = [name for name in VARIANTS if name in variants]
    compared: list[dict[str, Any]] = []
    for left, right in (pair for pair in COMPARISONS if set(pair) <= set(names)):
        one, other = (variants[name]["facts"] for name in (left, right))
        timed = (SECONDS,) if [left, right] in figures["timed_alike"] else ()
        tests = {}
        for key in (key for key in (*KEYS, *timed) if key in one and key in other):
            tests[key] = mean([a - b for a, b in zip(one[key], other[key], strict=True)], subjects)
            tests[key]["p"] = paired_test(one[key], other[key], groups=subjects)
        compared.append({"left": left, "right": right, "tests": tests})
    corrected([test for one in compared for test in one["tests"].values()])
    rows = {
        key: [mean(variants[name]["facts"][key], subjects, METRICS[key].is_share) for name in names]
        for key in KEYS
        if all(key in variants[name]["facts"] for name in names)
    }
    return {"named": {name: VARIANTS[name][0] for name in names}, "rows": rows, "compared": compared}


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest)
if __name__ == "__main__":
    REPORT.main()
