"""docs/real-models.md: what an edit of many facts does on real models, what stays, and over which text C is taken.

All facts of a model are edited at once by every row.
"""

import time
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from options import FILES, OUTPUTS, Data, Options, asking, some_of
from pages import DOCS, Collected, kept
from report import Report
from rows import against, known, row_of
from runs import chosen, without_generation
from work import finished_rows, loaded, once

from corrigenda import Fact, LanguageModel, load, read_facts
from corrigenda.moments.text import Text
from corrigenda.runs.environment import peak_memory_mb
from editing import AlphaEdit, Editor, Grace, Memit, RandomUpdate
from editing.shared.contexts import contexts
from eval import EvalSettings, Measurement, judged, measure
from eval.measurement import stored_measurements, write_measurements

NAME, SCRIPT = "real-models", "real_models.py"
SETTINGS = EvalSettings(max_new_tokens=10, perplexity_windows=16)
USES = ("editing.Memit", "eval.evaluation", "eval.measure")
MODELS = {"smollm2-135m": 60, "qwen2.5-coder-0.5b": 40, "qwen2.5-coder-1.5b": 16}
"""The models, and how many facts are edited at once in each."""
FIRST = 1700  # facts of the file that are passed over: no setting was chosen on those that follow
NEIGHBOURS = 5  # neighbourhood prompts of a fact
FLOOR = "bfloat16"  # the row without an edit: the model in bfloat16, where the others are in float32
HALF, WHOLE = "half", "longer-8"
"""The row of an edit in bfloat16, and that of the same edit in float32, whose decisions are compared."""
DECIDED = ("prompt", "paraphrases", "neighbourhood")
"""The kinds of prompts on which the new and the old object's probabilities are compared."""
TESTED = (
    *("efficacy_success", "paraphrase_success", "neighbourhood_success"),
    *("free_generation_strict", "paraphrase_free_generation_strict"),
    *("preservation", "first_token_kept", "answer_kept", "answer_kept_object", "answer_kept_word", "bleed"),
)
KEYS = (*TESTED, "perplexity_drift", "native_consistency", "native_consistency_neighbourhood")


def shipped(per_coefficient: int, lm: LanguageModel, work: Path) -> Memit:
    """`memit` with C over the text that ships, so many tokens for each coefficient, and contexts from it."""
    return Memit(text=Text("shipped"), tokens_per_coefficient=per_coefficient)


def of_documents(lm: LanguageModel, work: Path) -> Memit:
    """`memit` with C over this repository's own pages, in one file, and contexts sampled from the model."""
    path = work / "documents.txt"
    path.write_text("\n\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))))
    return Memit(text=Text(str(path)), prefixes=tuple(contexts(lm, Memit().prefix_lengths, Text("self"))))


SHORT = Text("self", tokens=64 * 24, length=24)
Make = Callable[[LanguageModel, Path], Editor]
ROWS: dict[str, tuple[str, Make]] = {  # by name, what it is, and the editor
    "random": ("a random update as large as `memit`'s", lambda lm, work: RandomUpdate(like=shipped(8, lm, work))),
    "memit": ("`memit`, C and contexts sampled from the model", lambda lm, work: Memit(text=Text("self"))),
    "documents": ("`memit`, C over this repository's pages, contexts sampled", of_documents),
    "longer": ("`memit`, C and contexts from the text that ships, 24 tokens a coefficient", partial(shipped, 24)),
    "longer-8": ("`memit`, the same text, 8 tokens a coefficient", partial(shipped, 8)),
    HALF: ("the same as the row before, loaded, edited and scored in bfloat16", partial(shipped, 8)),
    "alphaedit": ("`alphaedit`, C and contexts sampled", lambda lm, work: AlphaEdit(text=Text("self"))),
    "grace_wide": ("`grace_wide`", lambda lm, work: Grace(text=SHORT, widen=2.0, name="grace_wide")),
}
EARLIER = {  # rows that were made when less text shipped: they are shown and not made again
    "shipped": "`memit`, C over the 70,500 words that shipped first, contexts sampled",
    "contexts": "`memit`, C and contexts from these 70,500 words, 8 tokens a coefficient",
    "tokens-24": "the same, 24 tokens a coefficient",
    "tokens-2": "the same, 2 tokens a coefficient",
    "products": "the same, 8 tokens a coefficient, products in bfloat16 while it solves",
}
COMPARISONS = {  # by row, the one that it is compared with
    **dict.fromkeys(("documents", "longer", "shipped", "contexts"), "memit"),
    "longer-8": "longer",
    HALF: WHOLE,
    **dict.fromkeys(("tokens-24", "tokens-2", "products"), "contexts"),
}
options = asking(
    "--anew", models=some_of(MODELS), rows=some_of((FLOOR, *ROWS)), data=FILES / "counterfact.json", work=OUTPUTS / NAME
)


def collect(arguments: Options) -> Collected:
    names, rows = chosen(arguments.models, MODELS, "model"), chosen(arguments.rows, {FLOOR: None, **ROWS}, "row")

    def find(name: str, row: str) -> dict[str, Any]:
        values = values_of(name, row, arguments)
        return values | ({"peak_memory_mb": peak_memory_mb()} if len(names) == len(rows) == 1 else {})

    for name, row in product(names, rows):
        once(arguments.work / name / row / "values.json", partial(find, name, row), USES)
    found = kept(NAME, arguments) or Collected({"models": {}}, {})
    for name, row, values, how in finished_rows(arguments.work):
        found.figures["models"].setdefault(name, {})[row] = values
        found.runs[f"{name}: {row}"] = how
    found.figures.update(data=arguments.data.name, first=FIRST + 1)
    return found


@cache
def facts_of(data: Path, name: str) -> tuple[Fact, ...]:
    return tuple(without_generation(read_facts(data, offset=FIRST, limit=MODELS[name]), NEIGHBOURS))


def unedited(name: str, arguments: Options, dtype: str = "float32") -> list[Measurement]:
    """The measurement before all edits of a model."""
    folder, of = arguments.work / name, "before" if dtype == "float32" else f"before-{dtype}"
    if (found := stored_measurements(folder, of)) is None:
        found = measure(loaded(name, dtype), facts_of(arguments.data, name), SETTINGS)
        write_measurements(folder, of, found)
    return found


def values_of(name: str, row: str, arguments: Options) -> dict[str, Any]:
    """What a row makes of each fact: by metric the facts' values before and after."""
    dtype = "bfloat16" if row == HALF else "float32"
    facts, before = facts_of(arguments.data, name), unedited(name, arguments, dtype)
    begun = time.perf_counter()
    if row == FLOOR:
        seconds, after = 0.0, measure(load(name, dtype="bfloat16"), facts, SETTINGS, before)
    else:
        lm = loaded(name, dtype)
        edit = ROWS[row][1](lm, arguments.work).edit(lm, facts)
        seconds = time.perf_counter() - begun
        with edit.applied(lm):
            after = measure(lm, facts, SETTINGS, before)
    cases = [judged(*one) for one in zip(facts, before, after, strict=True)]
    decided = {kind: [decisions(one, kind) for one in after] for kind in DECIDED}
    return row_of(cases, seconds, KEYS) | {"decisions": decided}


def decisions(measured: Measurement, kind: str) -> list[bool]:
    """By prompt of a kind, whether the new object is more likely than the old one."""
    return [one.p_new > one.p_true for one in measured.scored(kind)]  # type: ignore[operator]


def digest(figures: Data) -> dict[str, Any]:
    """Means with intervals by model and row, and the paired tests of the texts."""
    models = {}
    for name in sorted(figures["models"], key=list(MODELS).index):
        rows = figures["models"][name]
        first = next(iter(rows.values()))
        models[name] = {
            "n": len(first["subjects"]),
            "before": {key: known(first, "before", key) for key in first["before"]},
            "rows": {row: {key: known(one, "after", key) for key in one["after"]} for row, one in rows.items()},
            "tests": {
                row: {"base": base, "of": against(rows[base], rows[row], TESTED)}
                for row, base in COMPARISONS.items()
                if row in rows and base in rows
            },
            "agreement": agreement(rows.get(WHOLE, {}), rows.get(HALF, {})),
        }
    what = {FLOOR: "no edit, in bfloat16"} | {row: what for row, (what, _) in ROWS.items()} | EARLIER
    return {"shown": models, "what": what}


def agreement(whole: Data, half: Data) -> dict[str, Any] | None:
    """On how many of the success comparisons two rows agree, by kind of prompts and in all; None where not known."""
    if "decisions" not in whole or "decisions" not in half:
        return None
    found = {}
    for kind in DECIDED:
        sides = [[one for fact in row["decisions"][kind] for one in fact] for row in (whole, half)]
        found[kind] = {"same": sum(a == b for a, b in zip(*sides, strict=True)), "n": len(sides[0])}
    every = {key: sum(one[key] for one in found.values()) for key in ("same", "n")}
    return {**found, "all": every, "peak_memory_mb": half.get("peak_memory_mb")}


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest)
if __name__ == "__main__":
    REPORT.main()
