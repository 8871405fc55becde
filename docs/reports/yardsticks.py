"""docs/yardsticks.md: what models do without an edit on the facts of the pages, to read the pages' figures by.

The figures on paraphrases stand beside what the unedited model says on paraphrases of what it says itself, and those of
what stays beside the floor: the same model in bfloat16, with no edit. Pages name their facts in `words.yardstick`.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from options import OUTPUTS, Data, asking
from pages import Collected, kept, made, read_data
from report import Report
from rows import by_key, mean_known
from runs import picked, without_generation
from work import loaded, once

from corrigenda import Fact, read_facts
from eval import EvalSettings, measure

NAME, SCRIPT = "yardsticks", "yardsticks.py"
SETTINGS = EvalSettings(max_new_tokens=10, perplexity_windows=0, only=("prompt", "paraphrases", "neighbourhood"))
USES = ("eval.measure",)
NATIVE = ("native_consistency", "native_consistency_neighbourhood")
KEPT = ("preservation", "first_token_kept", "answer_kept", "bleed")
SMALLEST = "smollm2-135m"


class Facts(NamedTuple):
    """Facts of a page."""

    model: str  # that is asked
    data: str  # the data set; its file, without the suffix
    places: str  # which of the file's, the first is 1
    floor: bool = True  # whether the floor is measured as well; not where the page shows nothing of what stays
    neighbours: int | None = None  # so many neighbourhood prompts of each; None for all
    page: str = ""  # whose data name the subjects, where not all of these facts are meant; empty for all

    @property
    def name(self) -> str:
        """How the data and the pages call them."""
        return f"{self.model} {self.data} {self.places}"


SETS = {  # the facts by name: one more page is one more line
    one.name: one
    for one in (
        *(Facts(SMALLEST, "counterfact", places, neighbours=5) for places in ("1-40", "1-100")),
        *(Facts(SMALLEST, "zsre", places, floor=False) for places in ("1-40", "1-100")),
        *(Facts("qwen2.5-coder-0.5b", "counterfact", places, neighbours=5) for places in ("1-40", "1-100")),
        *(Facts("qwen2.5-coder-0.5b", "zsre", places) for places in ("1-40", "1-100")),
        Facts("qwen2.5-coder-1.5b", "counterfact", "1-30", neighbours=5),
        *(Facts(SMALLEST, "counterfact", places) for places in ("1-20", "1-50,251-300", "1-50,951-1000")),
        Facts(SMALLEST, "counterfact", "1001-1200", floor=False, page="contexts"),
        *(Facts(SMALLEST, "counterfact", places) for places in ("1321-1360", "1701-1724")),
        *(Facts(SMALLEST, "zsre", places, floor=False) for places in ("1-50,251-300", "332-381,622-671")),
        *(Facts(SMALLEST, "zsre_fresh", places, floor=False) for places in ("1-100", "1-145")),
        Facts(SMALLEST, "embedded", "1-20"),
    )
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", default=[], help="the name of a set of facts; may be repeated")
    asking("--files", "--anew", work=OUTPUTS / NAME)(parser)


def collect(arguments: argparse.Namespace) -> Collected:
    wanted = arguments.only or [*SETS]  # a name may have commas
    if unknown := set(wanted) - set(SETS):
        raise SystemExit(f"no such set of facts: {', '.join(sorted(unknown))}; there are {', '.join(SETS)}")
    found = kept(NAME, arguments) or Collected({}, {})
    for name, facts in SETS.items():
        path = arguments.work / name.replace(" ", "_") / "values.json"
        if path.is_file() or (name in wanted and name not in found.figures):
            found.figures[name] = once(path, partial(values_of, facts, arguments.files), USES)
            found.runs[name] = made(path.parent)
    return Collected({name: found.figures[name] for name in SETS if name in found.figures}, found.runs, found.earlier)


def facts_of(asked: Facts, files: Path) -> list[Fact]:
    """The facts, with nothing but what is asked."""
    read = read_facts("embedded" if asked.data == "embedded" else files / f"{asked.data}.json", on_error="skip")
    found = without_generation(picked(read, asked.places), asked.neighbours if asked.floor else 0)
    subjects = read_data(asked.page)["figures"]["subjects"] if asked.page else None
    return [fact for fact in found if subjects is None or fact.subject in subjects]


def values_of(asked: Facts, files: Path) -> dict[str, Any]:
    """By metric the facts' values: of the unedited model, and of it in bfloat16."""
    facts = facts_of(asked, files)
    before = measure(loaded(asked.model), facts, SETTINGS)
    after = measure(loaded(asked.model, "bfloat16"), facts, SETTINGS, before) if asked.floor else []
    return {
        "subjects": [fact.subject for fact in facts],
        "unedited": by_key([one.values for one in before], (*NATIVE, "bleed")),
        "floor": by_key([one.values for one in after], KEPT),
        "says": [any(record.begins_true for record in one.scored("prompt")) for one in before],
    }


def digest(figures: Data) -> dict[str, Any]:
    """Of each set of facts the means, with intervals over subjects."""
    return {"sets": {name: digested(SETS[name], one) for name, one in figures.items()}}


def digested(facts: Facts, values: Data) -> dict[str, Any]:
    about = {key: getattr(facts, key) for key in ("model", "data", "places", "neighbours")}
    about |= {"n": len(values["subjects"]), "says": sum(values["says"]), "page": facts.page}
    return about | {
        state: {key: mean_known(of, values["subjects"], shares=True) for key, of in values[state].items()}
        for state in ("unedited", "floor")
    }


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest)
if __name__ == "__main__":
    REPORT.main()
