"""docs/neurons.md: do knowledge neurons hold the fact?

The two effects of Dai et al. 2022 (section 4.3) on facts of PARAREL that the model knows: suppressing a fact's neurons
lowers the right answer's probability, and enhancing them raises it, more than the same with as many random neurons, or
with the most active ones, of the same layers. It also compares locators, updates values, and says in which layers the
neurons lie.

    python docs/reports/neurons.py collect [--facts 60] [--data ../shared/data/pararel] [--minutes 8]
    python docs/reports/neurons.py page

What is finished is kept in the work folder, and the first command goes on where it was stopped. It writes the data
when all the facts are done; `pages.py` says more of the steps.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from neurons_findings import digest, draw_layers
from pages import ROOT, Collected, Report, beside, keeping_option, made, making, model_by_model, of_each_model
from words import written

from corrigenda import Fact, LanguageModel, load
from corrigenda.runs.folder import RunFolder
from corrigenda.system.files import write_json
from editing import Enhance, Suppress, UpdateNeurons
from eval.scoring.probabilities import TargetScore, probabilities, score
from locate.neurons.attribution import METHODS
from locate.neurons.locator import Neurons
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
FACTORS = {"suppress": 0.0, "enhance": 2.0}


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
    parser.add_argument("--relations", default="", help="comma-separated, as P36,P1376; by default all")
    parser.add_argument("--prompts", type=int, default=MOST, help="on how many prompts neurons are located, at most")
    parser.add_argument("--effects-only", action="store_true", help="no values are updated, which takes a third longer")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop (to go on later) after so long")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "neurons")
    keeping_option(parser)


def collect(arguments: argparse.Namespace) -> Collected | None:
    """What is done to the neurons of each fact; None where the time was up before all was done."""
    deadline = time.monotonic() + 60 * arguments.minutes
    lm = load(arguments.model)
    # What was found of another model, or in another way, is kept apart.
    way = f"{arguments.prompts}-prompts{'-effects' if arguments.effects_only else ''}"
    work = arguments.work / lm.fingerprint[:8] / way
    known = known_facts(lm, arguments, work, deadline)
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
                    other = None if arguments.effects_only else known[number - 1].fact
                    folder.append(examined(lm, one, other))
    records = {record["id"]: record for record in folder.cases()}
    figures = {"least": LEAST, "most": arguments.prompts, "top": TOP}
    figures |= {"facts": [records[one.fact.id] for one in known]}
    return beside(NAME, lm.name, figures, {"facts": made(folder.path)}, arguments)


# -- the facts


def known_facts(lm: LanguageModel, arguments: argparse.Namespace, work: Path, deadline: float) -> list[Known] | None:
    """Facts that the model answers rightly in three wordings at least, spread over relations and objects.

    None where the time was up before they were found.
    """
    found: dict[str, list[Known]] = {}
    relations, n = arguments.relations.split(",") if arguments.relations else [], arguments.facts
    for file in sorted(arguments.data.glob("*.json")):
        if relations and file.stem not in relations:
            continue
        kept = work / "known" / file.name
        if not kept.is_file():
            if time.monotonic() > deadline:
                return None
            write_json(kept, [[one.fact.to_dict(), one.held_out] for one in known_of(lm, file, arguments.prompts)])
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


def known_of(lm: LanguageModel, file: Path, most: int, most_of_an_object: int = 2) -> list[Known]:
    """The facts of one relation that the model knows.

    Only wordings that end with the object; only facts whose object is no part of the subject's name. The model knows a
    fact in a wording if each token of the object is the most likely one. Facts that it knows in none of the first
    three wordings are not asked in more.
    """
    record = json.loads(file.read_text(encoding="utf-8"))
    endings = [pattern.rstrip(" .") for pattern in record["patterns"]]
    wordings = [text[: -len("[Y]")].rstrip() for text in endings if text.endswith("[Y]") and text.count("[X]") == 1]
    wordings = list(dict.fromkeys(text.replace("[X]", "{}") for text in wordings))[: most + 3]
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
        *located, held_out = rights[number][: most + 1]
        new = objects[(objects.index(answer) + 1) % len(objects)]
        paraphrases = tuple(wording.replace("{}", subject) for wording in located[1:])
        fact = Fact(subject, located[0], new, answer, relation=record["relation_id"], paraphrases=paraphrases)
        found.append(Known(fact, held_out))
    return found


# -- one fact


def examined(lm: LanguageModel, one: Known, other: Fact | None) -> dict[str, Any]:
    """All figures of one fact; `other` is a fact that updated values should not change, None where none are updated."""
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
        "editors": {} if other is None else edited(lm, one, other, found),
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


PAGE = written(NAME, SCRIPT, model_by_model, timed=True)
PICTURES = {"neurons-by-layer.png": draw_layers}
REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, PAGE, of_each_model(digest), PICTURES)

if __name__ == "__main__":
    REPORT.main()
