"""docs/serving.md: does an edit survive in llama.cpp, as an adapter and in the GGUF file, and in PEFT?

The same questions are asked everywhere, greedily. It needs llama.cpp (the package xllamacpp).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any

import serving_edits as edits
import serving_llama as llama
from options import FILES, OUTPUTS, Data, Options, asking, some_of
from pages import Collected, kept, mean
from report import Report
from rows import mean_known
from runs import chosen
from work import finished_rows, once

from eval.metrics.answers_kept import content_word
from eval.metrics.free_generation import matches_leniently, matches_strictly

NAME, SCRIPT = "serving", "serving.py"
USES = ("corrigenda.edits.export.gguf_adapter", "corrigenda.edits.export.gguf_file", "editing.Memit", "editing.Rome")
Make = Callable[[str, Path, Path], Any]
ROWS: dict[str, tuple[str, Make]] = {  # by name, what it is, and what makes its answers
    "transformers": ("transformers, float32", edits.in_transformers),
    "peft": ("PEFT, our adapter", edits.in_peft),
    "llama": ("llama.cpp, the file as it was", llama.unedited),
    "adapter": ("llama.cpp, adapter beside the file", llama.with_adapter),
    "half": ("the same, cut to half the rank", partial(llama.with_adapter, halved=True)),
    "float16": ("edited tensors in F16", partial(llama.with_file, dtype="float16")),
    "q8_0": ("edited tensors in Q8_0", partial(llama.with_file, dtype="q8_0")),
    "former": ("edited tensors in their former types (Q4_K, Q6_K)", partial(llama.with_file, dtype="former")),
    "merged": (
        "all tensors merged in float16, and quantised again",
        partial(llama.with_file, dtype="float16", anew=True),
    ),
}
WHAT = {name: what for name, (what, _) in ROWS.items()}
COSTS: dict[str, Make] = {"speed": llama.speed, "export": llama.export_costs}
TOGETHER, ALONE = tuple(row for row in ROWS if row != "llama"), ("transformers", "peft", "adapter")
GROUPS: dict[str, tuple[str, ...]] = {  # by group of edits its rows
    **{"none": ("transformers", "llama"), "memit-30": (*TOGETHER, *COSTS), "rome-30": TOGETHER},
    **{"memit-1": ALONE, "rome-1": ALONE, "erase-1": ("transformers", "adapter", "q8_0")},
}
options = asking(
    "--anew",
    groups=some_of(GROUPS),
    rows=some_of(dict.fromkeys(row for rows in GROUPS.values() for row in rows)),
    data=FILES / "counterfact.json",
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected:
    rows, given = chosen(arguments.rows, ROWS | COSTS, "row"), (arguments.work, arguments.data)

    def find(group: str, row: str) -> dict[str, Any]:
        return COSTS[row](group, *given) if row in COSTS else {"answers": ROWS[row][1](group, *given)}

    for group in chosen(arguments.groups, GROUPS, "group"):
        for row in (one for one in GROUPS[group] if one in rows):
            once(arguments.work / group / row / "values.json", partial(find, group, row), USES)
    found = kept(NAME, arguments) or Collected({"groups": {}}, {})
    for group, row, values, how in finished_rows(arguments.work):
        took = sum(float(one.read_text()) for one in (arguments.work / group).glob("edits/*/seconds.json"))
        facts = edits.groups_facts(group, *given)
        new: dict[str, Any] = {"rows": {}, "facts": [*map(edits.facts_json, facts)], "editing": took}
        found.figures["groups"].setdefault(group, new)["rows"][row] = values
        found.runs[f"{group}: {row}"] = how
    found.figures.update(data=arguments.data.name, first=edits.FIRST + 1, model=edits.MODEL)
    return found


def digest(figures: Data) -> dict[str, Any]:
    """By group and row the shares with intervals; what survives of all edits with the adapter; the costs."""
    groups, none = figures["groups"], figures["groups"]["none"]
    unedited = {
        row: {one["questions"][0]: said[0] for [one], said in zip(none["facts"], found["answers"], strict=True)}
        for row, found in none["rows"].items()
    }
    shown = {name: shares(group, unedited) for name, group in groups.items() if name != "none"}
    adapters = [rows["adapter"] for name, rows in shown.items() if name != "erase-1" and "adapter" in rows]
    costs = {name: found for name, found in groups["memit-30"]["rows"].items() if name in COSTS}
    if sides := costs.get("speed"):
        ratio = median(a / b for a, b in zip(sides["with"], sides["without"], strict=True))
        costs["speed"] = {"ratio": ratio, **{side: median(sides[side]) for side in sides}, "n": len(sides["with"])}
    there = {name: groups.get(name, {"rows": ()})["rows"] for name in GROUPS}
    missing = {name: [row for row in rows if row not in there[name]] for name, rows in GROUPS.items()}
    return {
        "shown": shown,
        "survived": {key: sum(one[key] for one in adapters) for key in ("held_there", "held_both")},
        "floor": same(*(none["rows"][row]["answers"] for row in ("llama", "transformers"))),
        **{"costs": costs, "what": WHAT, "native": native(groups), "erased": erased(groups)},
        "missing": {name: rows for name, rows in missing.items() if rows},
    }


def shares(group: Data, unedited: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, Any]:
    """By row of a group its shares."""
    facts = list(chain.from_iterable(group["facts"]))
    subjects = [fact["subject"] for fact in facts]
    by_row = {row: list(chain.from_iterable(group["rows"][row]["answers"])) for row in WHAT if row in group["rows"]}
    there, shown = [holds(fact, said[0]) for fact, said in zip(facts, by_row["transformers"], strict=True)], {}

    def over(values: Sequence[Sequence[bool]]) -> dict[str, Any] | None:
        """The mean over facts of the share of each one's prompts."""
        return mean_known([fmean(one) if one else None for one in values], subjects, shares=True)

    for row, answers in by_row.items():
        before = unedited["transformers" if row in ("transformers", "peft") else "llama"]
        pairs = [*zip(facts, answers, strict=True)]
        held = [holds(fact, said[0]) for fact, said in pairs]
        shown[row] = {
            "held": mean([float(one) for one in held], subjects, shares=True),
            **{"n": len(held), "held_there": sum(there), "held_both": sum(map(min, held, there))},
            "paraphrases": over([[holds(fact, one) for one in paraphrased(fact, said)] for fact, said in pairs]),
            "kept": over([stays(fact, before[fact["questions"][0]], said) for fact, said in pairs]),
            "same": same(answers, by_row["transformers"]),
        }
    return shown


def paraphrased(fact: Data, answers: Sequence[str]) -> Sequence[str]:
    """The answers to the paraphrases."""
    return answers[1 : 1 + fact["paraphrases"]]


def native(groups: Data) -> dict[str, int]:
    """How many facts the unedited model says itself, and on how many of the paraphrases of these it says so."""
    none = groups["none"]
    known = [
        [matches_strictly(answer, (fact["true"],), None) for answer in paraphrased(fact, said)]
        for [fact], [said] in zip(none["facts"], none["rows"]["transformers"]["answers"], strict=True)
        if matches_strictly(said[0], (fact["true"],), None)
    ]
    return {"facts": len(known), "paraphrases": sum(map(len, known)), "said": sum(map(sum, known))}


def holds(fact: Data, answer: str) -> bool:
    """Whether an answer begins with the new object."""
    return matches_strictly(answer, fact["answers"], fact["true"])


def stays(fact: Data, before: Sequence[str], after: Sequence[str]) -> list[bool]:
    """Of each neighbour whether its answer is kept, as `answer_kept`: old object, or else first content word."""
    found = []
    for old, new in list(zip(before, after, strict=True))[1 + fact["paraphrases"] :]:
        if matches_leniently(old, (fact["true"],)):
            found.append(matches_leniently(new, (fact["true"],)))
        elif content_word(old):
            found.append(content_word(new) == content_word(old))
    return found


def same(some: Any, others: Any) -> float:
    """The share of answers, in lists of lists, that are the same, word for word."""

    def flat(answers: Any) -> list[str]:
        return [answers] if isinstance(answers, str) else [text for one in answers for text in flat(one)]

    return fmean(map(str.__eq__, flat(some), flat(others)))


def erased(groups: Data) -> dict[str, Any] | None:
    """What is said of the erased fact, by row; None where it was not asked."""
    if "erase-1" not in groups:
        return None
    [[fact]] = groups["erase-1"]["facts"]
    none = groups["none"]
    place = next(n for n, [one] in enumerate(none["facts"]) if one["questions"] == fact["questions"])
    said = {WHAT[row]: found["answers"][0][0][0] for row, found in groups["erase-1"]["rows"].items()}
    return {"fact": fact, "before": none["rows"]["transformers"]["answers"][place][0][0], "said": said}


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, timed=True)
if __name__ == "__main__":
    REPORT.main()
