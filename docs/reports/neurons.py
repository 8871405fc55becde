"""docs/neurons.md: do knowledge neurons hold the fact?

Suppressing and enhancing them (Dai et al. 2022, section 4.3), beside as many random ones, or the most active ones, of
the same layers; and locators, updated values, and the layers in which they lie.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain, product, zip_longest
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from options import FILES, OUTPUTS, Data, Options, asking, deadline_of
from pages import Collected, beside, made, mean, read_json
from report import Report
from rows import corrected
from work import once, records

from corrigenda import Fact, LanguageModel, load
from editing import Enhance, Suppress, UpdateNeurons
from eval import paired_test
from eval.scoring.probabilities import probabilities, score
from locate.neurons.attribution import METHODS
from locate.neurons.locator import Neurons
from locate.neurons.refine import NeuronsResult
from locate.neurons.suppression import highest_activation, probabilities_scaled, random_neurons
from locate.question import Question, ask

NAME, SCRIPT = "neurons", "neurons.py"
USES = (
    *("locate.neurons.locator", "locate.neurons.suppression", "editing.UpdateNeurons", "editing.Suppress"),
    "eval.scoring.probabilities",
)
DRAWS = 5  # sets of random neurons
TOP = 5  # neurons in the comparison of locators with sets of one size
LEAST, MOST = 2, 4  # on how many prompts of a fact its neurons are located; one more is held out
OF_AN_OBJECT = 2  # the most facts of a relation that have the same object
WRITES = (0.5, 1.0, 2.0, 8.0)  # the last one is the paper's
FACTORS = {"suppress": 0.0, "enhance": 2.0}


class Known(NamedTuple):
    """A fact that the model knows in several wordings; its neurons are located on its statement and its paraphrases.

    The new object is another one of the relation; `held_out`, with {} for the subject, has no part in the locating.
    """

    fact: Fact
    held_out: str

    @property
    def held_out_fact(self) -> Fact:
        """The fact in the held-out wording."""
        return Fact(self.fact.subject, self.held_out, self.fact.target_new, self.fact.target_true)


options = asking(*("--model", "--minutes", "--anew"), data=FILES / "pararel", facts=60, work=OUTPUTS / NAME)


def collect(arguments: Options) -> Collected:
    """What is done to the neurons of each fact."""
    deadline = deadline_of(arguments)
    lm = load(arguments.model)
    # What was found of another model, or in another way, is kept apart.
    work = arguments.work / lm.fingerprint[:8] / f"{MOST}-prompts"
    known = known_facts(lm, arguments, work / "known", deadline)
    facts = [one.fact for one in known]

    def find(fact: Fact) -> dict[str, Any]:
        place = facts.index(fact)
        return examined(lm, known[place], facts[place - 1])

    found = list(records(work / "facts", facts, find, USES, deadline))
    figures = {"least": LEAST, "most": MOST, "top": TOP, "facts": found}
    return beside(NAME, lm.name, figures, {"facts": made(work / "facts")}, arguments)


def known_facts(lm: LanguageModel, arguments: Options, work: Path, deadline: float | None) -> list[Known]:
    """Facts that the model answers rightly in three wordings at least, spread over relations and objects."""
    found = []
    for file in sorted(arguments.data.glob("*.json")):
        known = once(work / file.name, partial(known_of, lm, file), (), deadline)
        found.append([Known(Fact.from_dict(fact), held_out) for fact, held_out in known])
    # In turn from each relation, so that none of them dominates.
    in_turn = chain.from_iterable(zip_longest(*found))
    return [one for one in in_turn if one is not None][: arguments.facts]


def known_of(lm: LanguageModel, file: Path) -> list[list[Any]]:
    """The facts of one relation that the model knows, each with a wording that is held out, as JSON values."""
    # Only wordings that end with the object; only facts whose object is no part of the subject's name. The model knows
    # a fact in a wording if each token of the object is the most likely one. Facts that it knows in none of the first
    # three wordings are not asked in more.
    record = read_json(file)
    endings = [text.rstrip(" .").replace("[X]", "{}") for text in record["patterns"] if text.count("[X]") == 1]
    wordings = [text.removesuffix("[Y]").rstrip() for text in endings if text.endswith("[Y]")]
    wordings = list(dict.fromkeys(wordings))[: MOST + 3]
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
    found: list[list[Any]] = []
    used: Counter[str] = Counter()
    # Those known in most wordings first.
    for number in sorted(range(len(pairs)), key=lambda number: -len(rights[number])):
        subject, answer = pairs[number]
        if len(rights[number]) <= LEAST or used[answer] == OF_AN_OBJECT:
            continue
        used[answer] += 1
        *located, held_out = rights[number][: MOST + 1]
        new = objects[(objects.index(answer) + 1) % len(objects)]
        paraphrases = tuple(wording.replace("{}", subject) for wording in located[1:])
        fact = Fact(subject, located[0], new, answer, relation=record["relation_id"], paraphrases=paraphrases)
        found.append([fact.to_dict(), held_out])
    return found


def examined(lm: LanguageModel, one: Known, other: Fact) -> dict[str, Any]:
    """All figures of one fact; `other` is a fact that updated values should not change."""
    begin = time.perf_counter()
    refined = {method: Neurons(method=method).find(lm, one.fact) for method in METHODS}
    seconds = time.perf_counter() - begin
    found = refined["integrated_gradients"]
    seed = int(one.fact.id[:6], 16)
    sets: dict[str, Sequence[tuple[int, int]]] = {"none": ()}
    for method, result in refined.items():
        sets |= {method: result.neurons, f"{method} top": result.top(TOP)}
    sets["most active"] = highest_activation(found.results, found.neurons)
    for draw in range(DRAWS):
        sets[f"random {draw}"] = random_neurons(lm, found.neurons, seed + draw)
        sets[f"random top {draw}"] = random_neurons(lm, found.top(TOP), seed + draw)
    located = [result.question for result in found.results]
    held_out = [ask(lm, one.held_out_fact, one.fact.target_true)]
    return {
        **{"id": one.fact.id, "relation": one.fact.relation, "subject": one.fact.subject},
        **{"statement": one.fact.statement, "answer": one.fact.target_true, "new": one.fact.target_new},
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
    editors: dict[str, Any] = {"suppress": Suppress(neurons=found.neurons), "enhance": Enhance(neurons=found.neurons)}
    editors |= {f"update {write:g}": UpdateNeurons(neurons=found.neurons, write=write) for write in WRITES}
    pair = [str(one.fact.target_new), str(one.fact.target_true)]
    held_out = one.held_out_fact.statement
    queries = [(one.fact.statement, pair), (held_out, pair), (other.statement, [str(other.target_true)])]
    result: dict[str, dict[str, Any]] = {}
    for name in ("none", *editors):
        with nullcontext() if name == "none" else editors[name].edit(lm, [one.fact]).applied(lm):
            first, second, third = score(lm, queries)
        result[name] = {
            "located": probabilities(*first.targets),
            "held_out": probabilities(*second.targets),
            "other": float(torch.tensor(third.targets[0].log_probs).sum().exp()),
            "other_kept": all(third.targets[0].hits),
        }
    return result


WORDINGS = ("located", "held_out")
AGAINST = {  # sets of neurons, and the one that each is tested against
    **{"integrated_gradients": None, "random": "integrated_gradients", "most active": "integrated_gradients"},
    **{f"{method} top": "integrated_gradients top" for method in METHODS},
    **{"integrated_gradients top": None, "random top": "integrated_gradients top"},
}


def digest(figures: Data) -> dict[str, Any]:
    records = figures["facts"]
    sets, active = (
        [{tuple(place) for place in record["neurons"][of]} for record in records]
        for of in ("integrated_gradients", "most active")
    )
    frequent, times = Counter(place for places in sets for place in places).most_common(1)[0]
    shared = []
    for record, mine in zip(records, sets, strict=True):
        others = (theirs for other, theirs in zip(records, sets, strict=True) if other["answer"] != record["answer"])
        shared += [len(mine & set().union(*others)) / len(mine)] if mine else []
    subjects = [record["subject"] for record in records]
    layers = range(len(records[0]["by_layer"]))
    counts = [[float(sum(place[0] == layer for place in places)) for places in sets] for layer in layers]
    changes = {name: effects(records, name, other) for name, other in AGAINST.items()}
    corrected([cell for cells in changes.values() for cell in cells if cell["p"] is not None])
    return {
        "seconds": fmean(record["seconds_to_locate"] for record in records),
        "relations": Counter(record["relation"] for record in records),
        "counts": [len(places) for places in sets],
        "coarse": fmean(value for record in records for value in record["coarse"]),
        # Where a fact has no neurons there are no most active ones of which a share could be located.
        "active": fmean(len(mine & most) / len(mine) for mine, most in zip(sets, active, strict=True) if mine),
        **{"frequent": frequent, "times": times, "shared": fmean(shared)},
        "effects": changes,
        "gains": [gains(records, *of) for of in product(("suppress", "enhance"), ("random", "most active"))],
        "by_layer": {
            "neurons": [mean(column, subjects) for column in counts],
            "sums": [fmean(column) for column in zip(*(record["by_layer"] for record in records), strict=True)],
        },
        **of_editors([record for record in records if record["editors"]]),
    }


def relative(records: Sequence[Data], where: str, factor: str, name: str) -> list[float]:
    """The relative change of each fact's probability."""
    tables = [record[where][factor] for record in records]
    return [table[name] / table["none"] - 1 for table in tables]


def effects(records: Sequence[Data], name: str, other: str | None) -> list[dict[str, Any]]:
    """The mean changes by a set of neurons, and p against another set; suppressed and enhanced, on both wordings."""
    found, subjects = [], [record["subject"] for record in records]
    for factor, where in product(("suppress", "enhance"), WORDINGS):
        values = relative(records, where, factor, name)
        p = None if other is None else paired_test(values, relative(records, where, factor, other))
        found.append(mean(values, subjects) | {"p": p})
    return found


def gains(records: Sequence[Data], factor: str, control: str) -> dict[str, Any]:
    """By how much more located neurons do what they should than a control, and for how many facts."""
    parts = []
    for where in WORDINGS:
        sides = (relative(records, where, factor, name) for name in ("integrated_gradients", control))
        values = [(one - other) * (-1 if factor == "suppress" else 1) for one, other in zip(*sides, strict=True)]
        found = mean(values, [record["subject"] for record in records])
        parts.append(found | {"where": where, "wins": sum(value > 0 for value in values)})
    return {"factor": factor, "control": control, "parts": [part for part in parts if part["low"] is not None]}


def of_editors(records: Sequence[Data]) -> dict[str, Any]:
    """What the editors did, in means; and which update has most successes, and most with the other answers."""
    subjects = [record["subject"] for record in records]
    columns: list[Callable[[dict[str, Any]], float]] = [
        *(lambda row, of=of: float(row[of][0] > row[of][1]) for of in WORDINGS),
        *(lambda row, at=at: row["located"][at] for at in (0, 1)),
        lambda row: float(row["other_kept"]),
        lambda row: row["other"],
    ]
    found = {
        name: [mean([column(record["editors"][name]) for record in records], subjects, True) for column in columns]
        for name in records[0]["editors"]
    }

    def best(*columns: int) -> str:
        shares = {name: harmonic_mean([found[name][at]["mean"] or 0.0 for at in columns]) for name in updates}
        return max(shares, key=shares.__getitem__)

    updates = [name for name in found if name.startswith("update ")]
    return {"editors": found, "best": best(0), "both": best(0, 4)}


def draw_layers(data: Data, path: Path) -> None:
    """For each model the located neurons a fact by layer, with intervals, over the mean sums of attributions."""
    models = data["digest"]["models"]
    figure = Figure(figsize=(1 + 6 * len(models), 4.2), layout="constrained")
    columns = figure.subplots(2, len(models), sharex="col", squeeze=False).T
    for (upper, lower), (model, digested) in zip(columns, models.items(), strict=True):
        found = digested["by_layer"]
        means = [one["mean"] for one in found["neurons"]]
        bounds = [
            (0, 0) if one["low"] is None else (one["mean"] - one["low"], one["high"] - one["mean"])
            for one in found["neurons"]
        ]
        layers = range(len(means))
        upper.bar(layers, means, yerr=np.array(bounds).T, error_kw={"elinewidth": 1, "capsize": 2})
        upper.set_title(f"{model}: knowledge neurons of {len(digested['counts'])} facts", fontsize="medium")
        upper.set_ylabel("neurons a fact")
        lower.bar(layers, found["sums"], color="tab:red")
        lower.axhline(0, color="black", linewidth=0.6)
        lower.set(ylabel="sum of attributions", xlabel="layer")
    figure.savefig(path, dpi=150)


PICTURES = {"neurons-by-layer.png": draw_layers}
REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, pictures=PICTURES, timed=True, of_models=True)
if __name__ == "__main__":
    REPORT.main()
