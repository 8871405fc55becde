"""docs/neurons.md: do knowledge neurons hold the fact?

The two effects of Dai et al. 2022 (section 4.3) on facts of PARAREL that the model knows: suppressing a fact's neurons
lowers the right answer's probability, and enhancing them raises it, more than the same with as many random neurons, or
with the most active ones, of the same layers. It also compares locators, updates values, and says in which layers the
neurons lie.

    python docs/reports/neurons.py collect [--facts 60] [--data ../shared/data/pararel] [--minutes 8]
    python docs/reports/neurons.py page

What is finished is kept in the work folder, and the first command goes on where it was stopped. It writes the data
when all the facts are done; `pages.py` says more of the two steps.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from pages import ROOT, Collected, Report, made, making, mean
from words import written

from corrigenda import Fact, LanguageModel, load
from corrigenda.runs.folder import RunFolder
from corrigenda.system.files import write_json
from editing import Enhance, Suppress, UpdateNeurons
from eval import paired_test
from eval.scoring.probabilities import TargetScore, probabilities, score
from eval.statistics.paired import harmonic_mean
from locate.neurons.attribution import METHODS
from locate.neurons.locator import Neurons
from locate.neurons.plots import plot_layers
from locate.neurons.refine import NeuronsResult
from locate.neurons.suppression import highest_activation, probabilities_scaled, random_neurons
from locate.question import Question, ask

NAME = "neurons"
SCRIPT = "neurons.py"
USES = (
    "locate.neurons.locator",
    "locate.neurons.suppression",
    "editing.UpdateNeurons",
    "editing.Suppress",
    "eval.scoring.probabilities",
)
"""What the figures are made with: their code version is of the files of these."""
DRAWS = 5
"""Sets of random neurons."""
TOP = 5
"""Neurons in the comparison of locators with sets of one size."""
LEAST, MOST = 2, 4
"""On how many prompts of a fact its neurons are located; one more is held out."""
WRITES = (0.5, 1.0, 2.0, 8.0)
"""The last one is the paper's."""
UPDATES = tuple(f"update {write:g}" for write in WRITES)
FACTORS = {"suppress": 0.0, "enhance": 2.0}
WORDINGS = ("located", "held_out")
AGAINST = {
    **{"integrated_gradients": None, "random": "integrated_gradients", "most active": "integrated_gradients"},
    **{f"{method} top": "integrated_gradients top" for method in METHODS},
    **{"integrated_gradients top": None, "random top": "integrated_gradients top"},
}
"""Sets of neurons, and the one that each is tested against."""


@dataclass(frozen=True)
class Known:
    """A fact that the model knows in several wordings.

    Attributes:
        fact: its statement and its paraphrases are those its neurons are located on; the new object is another one of
            the relation.
        held_out: a wording that has no part in the locating, with {} for the subject.
    """

    fact: Fact
    held_out: str

    @property
    def held_out_fact(self) -> Fact:
        """The fact in the held-out wording."""
        return Fact(self.fact.subject, self.held_out, self.fact.target_new, self.fact.target_true)


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "pararel")
    parser.add_argument("--facts", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop (to go on later) after so long")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "neurons")


def collect(arguments: argparse.Namespace) -> Collected | None:
    """What is done to the neurons of each fact; None where the time was up before all was done."""
    deadline = time.monotonic() + 60 * arguments.minutes
    lm = load(arguments.model)
    work = arguments.work / lm.fingerprint[:8]  # what was found of another model is not this one's
    known = known_facts(lm, arguments.data, arguments.facts, work, deadline)
    if known is None:
        return None
    folder = RunFolder(work / "facts")
    done = {record["id"] for record in folder.cases()}
    if not done >= {one.fact.id for one in known}:
        with making(folder.path, USES):
            for number, one in enumerate(known):
                if time.monotonic() > deadline:
                    return None
                if one.fact.id not in done:
                    folder.append(examined(lm, one, known[number - 1].fact))
    records = {record["id"]: record for record in folder.cases()}
    figures = {"model": lm.name, "facts": [records[one.fact.id] for one in known]}
    return Collected(figures, {"facts": made(folder.path)})


# -- the facts


def known_facts(lm: LanguageModel, data: Path, n: int, work: Path, deadline: float) -> list[Known] | None:
    """Facts that the model answers rightly in three wordings at least, spread over relations and objects.

    None where the time was up before they were found.
    """
    found: dict[str, list[Known]] = {}
    for file in sorted(data.glob("*.json")):
        kept = work / "known" / file.name
        if not kept.is_file():
            if time.monotonic() > deadline:
                return None
            write_json(kept, [[one.fact.to_dict(), one.held_out] for one in known_of(lm, file)])
        records = json.loads(kept.read_text(encoding="utf-8"))
        found[file.stem] = [Known(Fact.from_dict(fact), held_out) for fact, held_out in records]
    # In turn from each relation, so that none of them dominates.
    chosen: list[Known] = []
    queues = [queue for queue in found.values() if queue]
    while queues and len(chosen) < n:
        for queue in queues:
            chosen.append(queue.pop(0))
        queues = [queue for queue in queues if queue]
    return chosen[:n]


def known_of(lm: LanguageModel, file: Path, most_of_an_object: int = 2) -> list[Known]:
    """The facts of one relation that the model knows.

    Only wordings that end with the object; only facts whose object is no part of the subject's name. The model knows a
    fact in a wording if each token of the object is the most likely one. Facts that it knows in none of the first
    three wordings are not asked in more.
    """
    record = json.loads(file.read_text(encoding="utf-8"))
    endings = [pattern.rstrip(" .") for pattern in record["patterns"]]
    wordings = [text[: -len("[Y]")].rstrip() for text in endings if text.endswith("[Y]") and text.count("[X]") == 1]
    wordings = list(dict.fromkeys(text.replace("[X]", "{}") for text in wordings))[: MOST + 3]
    if len(wordings) <= LEAST:
        return []
    pairs = [(fact["subject"], fact["object"]) for fact in record["facts"]]
    objects = list(dict.fromkeys(answer for _, answer in pairs))
    pairs = [(subject, answer) for subject, answer in pairs if answer.lower() not in subject.lower()]
    rights: list[list[str]] = [[] for _ in pairs]
    for part in (wordings[:3], wordings[3:]):
        asked = [number for number, right in enumerate(rights) if right or part[:1] == wordings[:1]]
        queries = [(w.replace("{}", pairs[number][0]), [pairs[number][1]]) for number in asked for w in part]
        scores = iter(score(lm, queries, max_tokens=1024))
        for number in asked:
            rights[number] += [wording for wording in part if all(next(scores).targets[0].hits)]
    found: list[Known] = []
    used: Counter[str] = Counter()
    # Those known in most wordings first.
    for number in sorted(range(len(pairs)), key=lambda number: -len(rights[number])):
        subject, answer = pairs[number]
        if len(rights[number]) <= LEAST or used[answer] == most_of_an_object:
            continue
        used[answer] += 1
        *located, held_out = rights[number][: MOST + 1]
        new = objects[(objects.index(answer) + 1) % len(objects)]
        paraphrases = tuple(wording.replace("{}", subject) for wording in located[1:])
        fact = Fact(subject, located[0], new, answer, relation=record["relation_id"], paraphrases=paraphrases)
        found.append(Known(fact, held_out))
    return found


# -- one fact


def examined(lm: LanguageModel, one: Known, other: Fact) -> dict[str, Any]:
    """All figures of one fact; `other` is a fact that should not change."""
    begin = time.perf_counter()
    refined = {method: Neurons(method=method).find(lm, one.fact) for method in METHODS}
    seconds = time.perf_counter() - begin
    found = refined["integrated_gradients"]
    seed = int(one.fact.id[:6], 16)
    sets: dict[str, Sequence[tuple[int, int]]] = {"none": ()}
    for method, result in refined.items():
        sets[method] = result.neurons
        sets[f"{method} top"] = result.top(TOP)
    sets["most active"] = highest_activation(found.results, found.neurons)
    for draw in range(DRAWS):
        sets[f"random {draw}"] = random_neurons(lm, found.neurons, seed + draw)
        sets[f"random top {draw}"] = random_neurons(lm, found.top(TOP), seed + draw)
    located = [result.question for result in found.results]
    held_out = [ask(lm, one.held_out_fact, one.fact.target_true)]
    return {
        "id": one.fact.id,
        "relation": one.fact.relation,
        "subject": one.fact.subject,
        "statement": one.fact.statement,
        "answer": one.fact.target_true,
        "new": one.fact.target_new,
        "prompts": len(located),
        "seconds_to_locate": seconds,
        "neurons": {name: [list(place) for place in places] for name, places in sets.items()},
        "coarse": [len(result.neurons()) for result in found.results],
        "share": found.share,
        "by_layer": torch.stack([result.by_layer() for result in found.results]).mean(0).tolist(),
        "located": changes(lm, located, sets),
        "held_out": changes(lm, held_out, sets),
        "editors": edited(lm, one, other, found),
    }


def changes(
    lm: LanguageModel, questions: Sequence[Question], sets: dict[str, Sequence[tuple[int, int]]]
) -> dict[str, dict[str, float]]:
    """For each factor and set the right answer's probability, the mean over the prompts; the draws' mean for random."""
    result = {}
    for name, factor in FACTORS.items():
        rows = torch.stack([probabilities_scaled(lm, question, list(sets.values()), factor) for question in questions])
        means = dict(zip(sets, rows.mean(0).tolist(), strict=True))
        for kind in ("random", "random top"):
            means[kind] = fmean(means.pop(f"{kind} {draw}") for draw in range(DRAWS))
        result[name] = means
    return result


def edited(lm: LanguageModel, one: Known, other: Fact, found: NeuronsResult) -> dict[str, dict[str, Any]]:
    """What the editors make of the fact and of another one: P(new) and P(old), and whether the other answer stays."""
    if not found.neurons:
        return {}
    editors: dict[str, Any] = {"none": None, "suppress": Suppress(neurons=found.neurons)}
    editors["enhance"] = Enhance(neurons=found.neurons)
    editors |= {f"update {write:g}": UpdateNeurons(neurons=found.neurons, write=write) for write in WRITES}
    pair = [str(one.fact.target_new), str(one.fact.target_true)]
    held_out = one.held_out_fact.statement
    queries = [(one.fact.statement, pair), (held_out, pair), (other.statement, [str(other.target_true)])]
    result: dict[str, dict[str, Any]] = {}
    for name, editor in editors.items():
        edit = None if editor is None else editor.edit(lm, [one.fact])
        if edit is not None:
            edit.apply(lm)
        try:
            first, second, third = score(lm, queries)
        finally:
            if edit is not None:
                edit.revert(lm)
        result[name] = {
            "located": probabilities(*first.targets),
            "held_out": probabilities(*second.targets),
            "other": _whole(third.targets[0]),
            "other_kept": all(third.targets[0].hits),
        }
    return result


def _whole(target: TargetScore) -> float:
    return float(torch.tensor(target.log_probs).sum().exp())


# -- the statistics and the picture


def digest(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of the facts."""
    records = figures["facts"]
    sets = [{tuple(place) for place in record["neurons"]["integrated_gradients"]} for record in records]
    frequent, times = Counter(place for places in sets for place in places).most_common(1)[0]
    active = [{tuple(place) for place in record["neurons"]["most active"]} for record in records]
    shared = []
    for record, mine in zip(records, sets, strict=True):
        pairs = zip(records, sets, strict=True)
        others = set().union(*(theirs for other, theirs in pairs if other["answer"] != record["answer"]))
        if mine:
            shared.append(len(mine & others) / len(mine))
    layers = range(len(records[0]["by_layer"]))
    subjects = [record["subject"] for record in records]
    counts = [[float(sum(place[0] == layer for place in places)) for places in sets] for layer in layers]
    return {
        "least": LEAST,
        "top": TOP,
        "seconds": fmean(record["seconds_to_locate"] for record in records),
        "relations": Counter(record["relation"] for record in records),
        "counts": [len(places) for places in sets],
        "coarse": fmean(value for record in records for value in record["coarse"]),
        "active": fmean(len(mine & most) / max(1, len(mine)) for mine, most in zip(sets, active, strict=True)),
        "frequent": frequent,
        "times": times,
        "shared": fmean(shared),
        "effects": {name: effects(records, name, other) for name, other in AGAINST.items()},
        "gains": [gains(records, factor, control) for factor in FACTORS for control in ("random", "most active")],
        "by_layer": {
            "neurons": [mean(column, subjects) for column in counts],
            "sums": torch.tensor([record["by_layer"] for record in records]).mean(0).tolist(),
        },
        **of_editors([record for record in records if record["editors"]]),
    }


def relative(records: Sequence[Mapping[str, Any]], where: str, factor: str, name: str) -> list[float]:
    """The relative change of each fact's probability."""
    tables = [record[where][factor] for record in records]
    return [table[name] / table["none"] - 1 for table in tables]


def effects(records: Sequence[Mapping[str, Any]], name: str, other: str | None) -> list[dict[str, Any]]:
    """The mean changes by a set of neurons, and p against another set; suppressed and enhanced, on both wordings."""
    found = []
    for factor in FACTORS:
        for where in WORDINGS:
            values = relative(records, where, factor, name)
            p = None if other is None else paired_test(values, relative(records, where, factor, other))
            found.append(mean(values, [record["subject"] for record in records]) | {"p": p})
    return found


def gains(records: Sequence[Mapping[str, Any]], factor: str, control: str) -> dict[str, Any]:
    """By how much more located neurons do what they should than a control, and for how many facts."""
    parts = []
    for where in WORDINGS:
        sides = (relative(records, where, factor, name) for name in ("integrated_gradients", control))
        values = [(one - other) * (-1 if factor == "suppress" else 1) for one, other in zip(*sides, strict=True)]
        found = mean(values, [record["subject"] for record in records])
        parts.append(found | {"where": where, "wins": sum(value > 0 for value in values)})
    return {"factor": factor, "control": control, "parts": [part for part in parts if part["low"] is not None]}


def of_editors(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the editors did, in means; and which update has most successes, and most with the other answers."""
    subjects = [record["subject"] for record in records]
    columns: list[Callable[[dict[str, Any]], float]] = [
        lambda row: float(row["located"][0] > row["located"][1]),
        lambda row: float(row["held_out"][0] > row["held_out"][1]),
        lambda row: row["located"][0],
        lambda row: row["located"][1],
        lambda row: float(row["other_kept"]),
        lambda row: row["other"],
    ]
    found = {
        name: [mean([column(record["editors"][name]) for record in records], subjects, True) for column in columns]
        for name in ("none", "suppress", "enhance", *UPDATES)
    }

    def together(name: str) -> float:
        success, _, _, _, kept, _ = found[name]
        return float(harmonic_mean(np.array(success["mean"]), np.array(kept["mean"])))

    best = max(UPDATES, key=lambda name: found[name][0]["mean"] or 0.0)
    return {"editors": found, "best": best, "both": max(UPDATES, key=together)}


def draw(data: Mapping[str, Any], path: Path) -> None:
    """Located neurons a fact by layer, with intervals, over the mean sums of attributions."""
    found = data["digest"]["by_layer"]
    plot_layers(
        path,
        range(len(found["sums"])),
        [one["mean"] for one in found["neurons"]],
        found["sums"],
        title=f"Knowledge neurons of {len(data['figures']['facts'])} facts by layer",
        counts_label="neurons a fact",
        sums_label="sum of attributions",
        intervals=[
            (one["mean"], one["mean"]) if one["low"] is None else (one["low"], one["high"]) for one in found["neurons"]
        ],
    )


PAGE = written(NAME, SCRIPT, timed=True)
PICTURES = {"neurons-by-layer.png": draw}
REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, PAGE, digest, PICTURES)

if __name__ == "__main__":
    REPORT.main()
