"""docs/ffn-lens.md: what of the papers on FFN memories replicates in a gated model.

Key-value memories (Geva et al. 2021), sub-updates, early exit and steering (Geva et al. 2022), and the recall of facts
(Geva et al. 2023), measured on one model, beside what the papers report of theirs.

    python docs/reports/ffn_lens.py collect [--tokens 65536] [--facts 40] [--parts facts,steering,...]
    python docs/reports/ffn_lens.py page

Each part is kept in the work folder when it is finished (facts one by one), and the first command goes on where it was
stopped; `--parts` makes some of them, in this order. The page says of a model what its parts say; `pages.py` says more
of the steps, and `ffn_lens_findings.py` what the figures say.
"""

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ffn_lens_findings import MOST_DRIFT, PAPER_ALONE, digest
from ffn_lens_pictures import PICTURES
from pages import ROOT, Collected, Report, beside, keeping_option, made, making, model_by_model, of_each_model
from words import written

from corrigenda import Fact, LanguageModel, load
from corrigenda.data.read import read_facts
from corrigenda.data.word_lists import insults
from corrigenda.moments.text import Text
from corrigenda.runs.folder import RunFolder
from corrigenda.system.files import write_json
from editing.neurons.steer import steer
from eval import EvalSettings, has_word_of, steering_report
from jobs.lens import PARTS, Given, LensSettings
from locate import AttentionKnockout, UnknownFactError
from locate.flow.attributes import attribute_flow
from locate.lens.by_layer import Mean, mean_of
from locate.lens.early_exit import EarlyExitSettings, early_exit
from locate.lens.promoters import directions, promoters
from locate.lens.words import UnknownTokenError, token_id

NAME = "ffn-lens"
SCRIPT = "ffn_lens.py"
USES = (
    "jobs.lens",
    "locate.flow.knockout",
    "locate.flow.attributes",
    "locate.lens.early_exit",
    "locate.lens.promoters",
    "editing.neurons.steer",
    "eval.steering",
    "corrigenda.data.word_lists",
)
"""What the figures are made with: their code version is of the files of these."""
SOURCES = ("subject", "relation", "last")
OPENINGS = ("{} is", "{} was", "{} is known for", "{} is located in", "The history of {}", "Everyone knows that {}")
"""What the model goes on from, when it is asked for its own words about a subject."""
ABOUT = 40
"""Tokens of each of these."""
POLITE = ("please", "thank", "thanks", "kind", "friend", "welcome", "sorry", "love", "dear", "hope")
DRIVEN = 10
"""Values that are driven, as in the paper."""
STRENGTHS: Mapping[str, tuple[float, ...]] = {
    "insults": (-10.0, -3.0, 3.0, 10.0),
    "polite words": (3.0, 10.0, 30.0),
    "random values": (10.0, 30.0),
}
"""In units of the root mean square of each layer's coefficients."""
PROMPTS = tuple(
    f"{opening}, {rest}"
    for opening in (
        "He shouted at the driver",
        "She was so angry that she yelled",
        "The man in the bar looked at me and said",
        "I can't believe how badly you did this",
        '"Get out of my house',
        "After the game the coach told him",
        "He lost his temper",
        "The comment under the video said",
    )
    for rest in ('"you are such a', '"what a', "you are nothing but a", '"you', '"shut up, you')
)
SETS = {"counterfact": "CounterFact", "known_facts": "known facts"}
"""Names of data sets, by the file's."""
TEXT_PARTS = ("triggers", "sensitivity", "agreement", "aggregation", "sub_updates")
ORDER = ("facts", "steering", "early_exit", *TEXT_PARTS)


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "counterfact.json")
    parser.add_argument("--facts", type=int, default=40, help="known facts that are followed")
    parser.add_argument("--asked", type=int, default=600, help="facts that are asked for, at most")
    parser.add_argument("--worded", type=int, default=40, help="of the known facts, how many have attributes")
    parser.add_argument("--tokens", type=int, default=65536, help="of text, sampled from the model itself")
    parser.add_argument("--length", type=int, default=64, help="of a sequence of it, in tokens")
    parser.add_argument("--texts", type=int, default=500, help="positions for aggregation and saturation events")
    parser.add_argument("--exit-tokens", type=int, default=8192, help="of text for early exit")
    parser.add_argument("--windows", type=int, default=64, help="of the held-out texts, for steering")
    parser.add_argument("--parts", default=",".join(ORDER))
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "ffn-lens")
    keeping_option(parser)


def collect(arguments: argparse.Namespace) -> Collected:
    """The figures of all parts that are made."""
    lm = load(arguments.model)
    text = Text("self", tokens=arguments.tokens, length=arguments.length)
    work = arguments.work / lm.fingerprint[:8]  # what was found of another model is not this one's
    folders = {name: work / f"{name}-{_size(arguments, text, name)}" for name in ORDER}
    finders: dict[str, Callable[[Path], dict[str, Any]]] = {
        "facts": lambda folder: followed(lm, arguments, folder),
        "steering": lambda folder: steered(lm, arguments.windows),
        "early_exit": lambda folder: exits(lm, arguments.exit_tokens, folder),
        **{name: _of_text(name, lm, text, arguments.texts, folders) for name in TEXT_PARTS},
    }
    asked = arguments.parts.split(",")
    unknown = [name for name in asked if name not in ORDER]
    if unknown:
        raise SystemExit(f"--parts: there is no part {unknown[0]!r}; the parts are {', '.join(ORDER)}")
    for name, folder in folders.items():
        if name in asked and not (folder / "figures.json").is_file():
            with making(folder, USES):
                write_json(folder / "figures.json", finders[name](folder))
    there = {name: folder for name, folder in folders.items() if (folder / "figures.json").is_file()}
    figures = {name: json.loads((folder / "figures.json").read_text("utf-8")) for name, folder in there.items()}
    gated = lm.memory(0).gates is not None
    about = {"n_layers": lm.n_layers, "d_ffn": lm.memory(0).d_ffn, "gated": gated}
    about |= {"tokens": arguments.tokens, "length": arguments.length, "exit_tokens": arguments.exit_tokens}
    return beside(NAME, lm.name, about | figures, {name: made(folder) for name, folder in there.items()}, arguments)


def _size(arguments: argparse.Namespace, text: Text, name: str) -> str:
    """What a part's figures hang on, so that those of other sizes are kept apart."""
    sizes = {
        "facts": f"{arguments.data.stem}-{arguments.facts}-{arguments.asked}",
        "steering": str(arguments.windows),
        "early_exit": str(arguments.exit_tokens),
    }
    return sizes.get(name, f"{text.key}-{arguments.texts}")


# -- over text


def _of_text(
    name: str, lm: LanguageModel, text: Text, texts: int, folders: Mapping[str, Path]
) -> Callable[[Path], dict[str, Any]]:
    """A part of the job `lens`, with the results of the parts that it needs."""

    def find(folder: Path) -> dict[str, Any]:
        part = PARTS[name]
        found = {need: PARTS[need].load(folders[need] / "result") for need in part.needs}
        asked = LensSettings(texts=texts, events=texts)
        result = part.find(Given(lm, text, asked, found))
        result.save(folder / "result")
        figures = result.summary()
        return figures | FURTHER[name](result) if name in FURTHER else figures

    return find


def _agreement_by_depth(result: Any) -> dict[str, Any]:
    """Agreement in thirds of the layers, beside the control, and where the most peaked values lie."""
    n = len(result.used)
    thirds = {"lower": range(n // 3), "middle": range(n // 3, 2 * n // 3), "upper": range(2 * n // 3, n)}
    found: dict[str, Any] = {}
    for depth, layers in thirds.items():
        rows = list(layers)
        used = result.used[rows]
        found[depth] = {
            name: _summary(mean_of(outcomes[rows][used].double().tolist(), shares=True))
            for name, outcomes in (("agreement", result.agrees), ("permuted", result.agrees_permuted))
        }
        found[depth]["peaked"] = sum(layer in layers for layer, _ in result.peaked)
    return {"by_depth": found}


def _aggregation_over_layers(result: Any) -> dict[str, Any]:
    """What the layers do to the prediction, all layers together, with intervals over positions."""
    names = ("residual", "agreement", "override", "composition")
    cases = {
        name: _summary(mean_of((result.cases == number).double().mean(0).tolist(), shares=True))
        for number, name in enumerate(names)
    }
    changed = (result.cases >= 2).double()
    composed = ((result.cases == 3).double().sum(0) / changed.sum(0)).tolist()
    return {
        "cases": cases,
        "active": _summary(mean_of(result.active.double().mean(0).tolist(), shares=True)),
        "positive": _summary(mean_of(result.positive.double().mean(0).tolist(), shares=True)),
        "lowest_alone": float(result.alone.double().mean(1).min()),
        "composed_of_changed": _summary(mean_of(composed, shares=True)),
        "settled": torch.bincount(result.settled, minlength=result.n_layers + 1).tolist(),
    }


def _saturation(result: Any) -> dict[str, Any]:
    """The pairs of an event and elsewhere as differences, and promotion and elimination by layer."""
    texts = torch.arange(len(result.events))
    others = torch.arange(result.n_layers)[:, None] != result.events
    found: dict[str, Any] = {}
    for name in ("highest", "mean", "lowest", "promotion", "elimination"):
        row = getattr(result, name).double()
        there, elsewhere = row[result.events, texts], (row * others).sum(0) / others.sum(0)
        found[name] = {
            "there": _summary(mean_of(there.tolist())),
            "elsewhere": _summary(mean_of(elsewhere.tolist())),
            "difference": _summary(mean_of((there - elsewhere).tolist())),
        }
    by_layer = {
        name: [_summary(mean_of(layer.double().tolist())) for layer in getattr(result, name)]
        for name in ("promotion", "elimination", "mean")
    }
    return {"compared": found, "scores_by_layer": by_layer}


FURTHER: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "agreement": _agreement_by_depth,
    "aggregation": _aggregation_over_layers,
    "sub_updates": _saturation,
}


def _summary(mean: Mean | None) -> dict[str, Any] | None:
    return None if mean is None else mean.summary()


def exits(lm: LanguageModel, tokens: int, folder: Path) -> dict[str, Any]:
    """Early exit by three rules, and their curves."""
    found = early_exit(lm, EarlyExitSettings(text=Text("self", tokens=tokens), per_sequence=8))
    found.save(folder / "result")
    curves = {name: [_numbers(row) for row in getattr(found, name)] for name in ("accuracy", "saved")}
    return found.summary() | {"taught": found.n_taught, "curves": curves, "settled": found.settled.tolist()}


def _numbers(row: torch.Tensor) -> list[float]:
    """The numbers of a row up to the first NaN: a rule may have fewer points than another."""
    return row[row.isfinite()].tolist()


# -- of facts


def followed(lm: LanguageModel, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Knockout and attributes of the facts that the model knows, one after another."""
    records = {record["id"]: record for record in RunFolder(folder).cases()}
    name = SETS.get(arguments.data.stem, arguments.data.stem)
    sets = {"embedded": read_facts("embedded"), name: read_facts(arguments.data, limit=arguments.asked)}
    n_asked = dict.fromkeys(sets, 0)
    in_turn = [(name, fact) for name, facts in sets.items() for fact in facts][: arguments.asked]
    known: list[dict[str, Any]] = []
    subjects: set[str] = set()
    for name, fact in in_turn:
        if len(known) == arguments.facts:
            break
        n_asked[name] += 1
        if fact.subject in subjects:  # one fact of each subject: the figures are of subjects
            n_asked[name] -= 1
            continue
        if fact.id not in records:
            records[fact.id] = examined(lm, name, fact, worded=len(known) < arguments.worded)
            RunFolder(folder).append(records[fact.id])
        if "knockout" in records[fact.id]:
            known.append(records[fact.id])
            subjects.add(fact.subject)
    return {"asked": n_asked, "known": _with_rates_of_others(lm, known)}


def examined(lm: LanguageModel, of: str, fact: Fact, worded: bool) -> dict[str, Any]:
    """One fact: the knockout's probabilities by source and layer, ranks of the answer, maybe the model's own words."""
    record: dict[str, Any] = {"id": fact.id, "set": of, "fact": replace(fact, generation=()).to_dict()}
    try:
        found = AttentionKnockout(sources=SOURCES).find(lm, fact)
    except UnknownFactError:
        return record
    flow = attribute_flow(lm, fact)
    record["knockout"] = {
        "answer": found.answer,
        "p_clean": found.p_clean,
        "sources": list(found.sources),
        "changes": found.changes.tolist(),
    }
    record["ranks"] = {name: getattr(flow, f"{name}_ranks").tolist() for name in ("attention", "ffn", "state")}
    if worded:
        record["words"] = lm.generate([opening.replace("{}", fact.subject) for opening in OPENINGS], ABOUT)
    return record


def _with_rates_of_others(lm: LanguageModel, known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records, those with words with the attributes rate, and that of the next such fact's words: the control."""
    found = []
    worded = [record for record in known if "words" in record]
    for record in known:
        kept = {key: value for key, value in record.items() if key not in ("words", "fact")}
        kept["subject"] = record["fact"]["subject"]
        if "words" in record:
            rates = kept["rates"] = {}
            for name, other in (("own", record), ("other", worded[(worded.index(record) + 1) % len(worded)])):
                flow = attribute_flow(lm, Fact.from_dict(record["fact"]), other["words"])
                assert flow.rates is not None  # there are words
                rates[name] = flow.rates.tolist()
        found.append(kept)
    return found


# -- steering


def steered(lm: LanguageModel, windows: int) -> dict[str, Any]:
    """The share of texts with a word of the list, and perplexity drift, over what is driven how far."""
    single = [word for word in insults() if _is_one_token(lm, word)]
    draw = random.Random(0)
    places = [(layer, number) for layer in range(lm.n_layers) for number in range(lm.memory(layer).d_ffn)]
    sets = {
        "insults": directions(promoters(lm, single, DRIVEN)),
        "polite words": directions(promoters(lm, POLITE, DRIVEN)),
        "random values": {place: draw.choice((-1.0, 1.0)) for place in draw.sample(places, DRIVEN)},
    }
    settings = EvalSettings(max_new_tokens=20, perplexity_windows=windows)
    found: dict[str, Any] = {}
    for name, values in sets.items():
        edits = {strength: steer(lm, values, strength, prompts=PROMPTS) for strength in STRENGTHS[name]}
        report = steering_report(lm, edits, PROMPTS, has_word_of(insults()), settings)
        found[name] = report.summary() | {"values": sorted([*place, sign] for place, sign in values.items())}
        found[name]["with"] = [[float(has_word_of(insults())(text)) for text in row.texts] for row in report.rows]
    return {"words": len(insults()), "single": len(single), "prompts": len(PROMPTS), "sets": found}


def _is_one_token(lm: LanguageModel, word: str) -> bool:
    try:
        token_id(lm, word)
    except UnknownTokenError:
        return False
    return True


def shown(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows."""
    return model_by_model(data) | {"paper_alone": PAPER_ALONE, "most_drift": MOST_DRIFT}


PAGE = written(NAME, SCRIPT, shown)
REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, PAGE, of_each_model(digest), PICTURES)

if __name__ == "__main__":
    REPORT.main()
