"""docs/ffn-lens.md: what of the papers on FFN memories replicates in a gated model.

Key-value memories (Geva et al. 2021), sub-updates, early exit and steering (Geva et al. 2022), and the recall of facts
(Geva et al. 2023), beside what the papers report of their models. `--parts` makes some of the parts, in this order;
the page says of a model what its parts say.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ffn_lens_findings import MOST_DRIFT, PAPER_ALONE, PICTURES, digest, summary
from options import FILES, OUTPUTS, Data, Options, asking, some_of
from pages import Collected, beside, made
from report import Report, model_by_model
from runs import chosen
from work import once, records

from corrigenda import Fact, LanguageModel, load, read_facts
from corrigenda.data.word_lists import insults
from corrigenda.moments.text import Text
from editing.neurons.steer import steer
from eval import EvalSettings, has_word_of, steering_report
from jobs.lens import PARTS, Given, LensSettings
from locate import AttentionKnockout, UnknownFactError
from locate.flow.attributes import attribute_flow
from locate.flow.knockout import Group
from locate.lens.early_exit import EarlyExitSettings, early_exit
from locate.lens.promoters import directions, promoters
from locate.lens.words import UnknownTokenError, token_id

NAME, SCRIPT = "ffn-lens", "ffn_lens.py"
USES = (
    *("jobs.lens", "locate.flow.knockout", "locate.flow.attributes", "locate.lens.early_exit"),
    *("locate.lens.promoters", "editing.neurons.steer", "eval.steering", "corrigenda.data.word_lists"),
)
SOURCES: tuple[Group, ...] = ("subject", "relation", "last")
OPENINGS = ("{} is", "{} was", "{} is known for", "{} is located in", "The history of {}", "Everyone knows that {}")
"""What the model goes on from, when it is asked for its own words about a subject."""
ABOUT = 40  # tokens of each of these
POLITE = ("please", "thank", "thanks", "kind", "friend", "welcome", "sorry", "love", "dear", "hope")
DRIVEN = 10  # values that are driven, as in the paper
STRENGTHS: Mapping[str, tuple[float, ...]] = {  # in units of the root mean square of each layer's coefficients
    "insults": (-10.0, -3.0, 3.0, 10.0),
    "polite words": (3.0, 10.0, 30.0),
    "random values": (10.0, 30.0),
}
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
SETS = {"counterfact": "CounterFact", "known_facts": "known facts"}  # names of data sets, by the file's
TEXT_PARTS = ("triggers", "sensitivity", "agreement", "aggregation", "sub_updates")
ORDER = ("facts", "steering", "early_exit", *TEXT_PARTS)
options = asking(
    *("--model", "--anew"),
    data=FILES / "counterfact.json",
    facts=(40, "known facts that are followed"),
    asked=(600, "facts that are asked for, at most"),
    worded=(40, "of the known facts, how many have attributes"),
    tokens=(65536, "of text, sampled from the model itself"),
    length=(64, "of a sequence of it, in tokens"),
    texts=(500, "positions for aggregation and saturation events"),
    exit_tokens=(8192, "of text for early exit"),
    windows=(64, "of the held-out texts, for steering"),
    parts=some_of(ORDER),
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected:
    asked = chosen(arguments.parts, dict.fromkeys(ORDER), "part")
    lm = load(arguments.model)
    text = Text("self", tokens=arguments.tokens, length=arguments.length)
    # What was found of another model, or of other sizes, is not this one's.
    sizes = dict.fromkeys(TEXT_PARTS, f"{text.key(lm)}-{arguments.texts}") | {
        "facts": f"{arguments.data.stem}-{arguments.facts}-{arguments.asked}",
        "steering": str(arguments.windows),
        "early_exit": str(arguments.exit_tokens),
    }
    folders = {name: arguments.work / lm.fingerprint[:8] / f"{name}-{sizes[name]}" for name in ORDER}
    finders: dict[str, Callable[[], dict[str, Any]]] = {
        "facts": lambda: followed(lm, arguments, folders["facts"]),
        "steering": lambda: steered(lm, arguments.windows),
        "early_exit": lambda: exits(lm, arguments.exit_tokens, folders["early_exit"]),
        **{name: partial(of_text, name, lm, text, arguments.texts, folders) for name in TEXT_PARTS},
    }
    there = {name: folder for name, folder in folders.items() if name in asked or (folder / "figures.json").is_file()}
    figures = {name: once(folder / "figures.json", finders[name], USES) for name, folder in there.items()}
    about = {"n_layers": lm.n_layers, "d_ffn": lm.memory(0).d_ffn, "gated": lm.memory(0).gates is not None}
    about |= {"tokens": arguments.tokens, "length": arguments.length, "exit_tokens": arguments.exit_tokens}
    return beside(NAME, lm.name, about | figures, {name: made(folder) for name, folder in there.items()}, arguments)


def of_text(name: str, lm: LanguageModel, text: Text, texts: int, folders: Mapping[str, Path]) -> dict[str, Any]:
    """A part of the job `lens`, with the results of the parts that it needs."""
    part = PARTS[name]
    found = {need: PARTS[need].load(folders[need] / "result") for need in part.needs}
    result = part.find(Given(lm, text, LensSettings(texts=texts, events=texts), found))
    result.save(folders[name] / "result")
    return result.summary() | (FURTHER[name](result) if name in FURTHER else {})


def agreement_by_depth(result: Any) -> dict[str, Any]:
    """Agreement in thirds of the layers, beside the control, and where the most peaked values lie."""
    n, found = len(result.used), dict[str, Any]()
    for third, depth in enumerate(("lower", "middle", "upper")):
        rows = list(range(third * n // 3, (third + 1) * n // 3))
        kinds = {"agreement": result.agrees, "permuted": result.agrees_permuted}
        found[depth] = {name: mean_over(of[rows][result.used[rows]], shares=True) for name, of in kinds.items()}
        found[depth]["peaked"] = sum(layer in rows for layer, _ in result.peaked)
    return {"by_depth": found}


def aggregation_over_layers(result: Any) -> dict[str, Any]:
    """What the layers do to the prediction, all layers together, with intervals over positions."""

    def share(outcomes: torch.Tensor) -> dict[str, Any] | None:
        return mean_over(outcomes.double().mean(0), shares=True)

    composed = (result.cases == 3).double().sum(0) / (result.cases >= 2).double().sum(0)
    names = ("residual", "agreement", "override", "composition")
    return {
        "cases": {name: share(result.cases == number) for number, name in enumerate(names)},
        "active": share(result.active),
        "positive": share(result.positive),
        "lowest_alone": float(result.alone.double().mean(1).min()),
        "composed_of_changed": mean_over(composed, shares=True),
        "settled": torch.bincount(result.settled, minlength=result.n_layers + 1).tolist(),
    }


def saturation(result: Any) -> dict[str, Any]:
    """The pairs of an event and elsewhere as differences, and promotion and elimination by layer."""
    others = torch.arange(result.n_layers)[:, None] != result.events
    found: dict[str, Any] = {}
    for name in ("highest", "mean", "lowest", "promotion", "elimination"):
        row = getattr(result, name).double()
        there, elsewhere = row[result.events, torch.arange(len(result.events))], (row * others).sum(0) / others.sum(0)
        parts = {"there": there, "elsewhere": elsewhere, "difference": there - elsewhere}
        found[name] = {part: mean_over(values) for part, values in parts.items()}
    by_layer = {name: [*map(mean_over, getattr(result, name))] for name in ("promotion", "elimination", "mean")}
    return {"compared": found, "scores_by_layer": by_layer}


FURTHER: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "agreement": agreement_by_depth,
    "aggregation": aggregation_over_layers,
    "sub_updates": saturation,
}


def mean_over(values: torch.Tensor, shares: bool = False) -> dict[str, Any] | None:
    """The mean of independent cases; None where none was measured."""
    return summary(values.double().tolist(), shares)


def exits(lm: LanguageModel, tokens: int, folder: Path) -> dict[str, Any]:
    """Early exit by three rules, and their curves."""
    found = early_exit(lm, EarlyExitSettings(text=Text("self", tokens=tokens), per_sequence=8))
    found.save(folder / "result")
    # A rule may have fewer points than another: then its row ends in NaN.
    curves = {name: [row[row.isfinite()].tolist() for row in getattr(found, name)] for name in ("accuracy", "saved")}
    return found.summary() | {"taught": found.n_taught, "curves": curves, "settled": found.settled.tolist()}


def followed(lm: LanguageModel, arguments: Options, folder: Path) -> dict[str, Any]:
    """Knockout and attributes of the facts that the model knows, one after another; one fact of each subject."""
    name = SETS.get(arguments.data.stem, arguments.data.stem)
    sets = {"embedded": read_facts("embedded"), name: read_facts(arguments.data, limit=arguments.asked)}
    in_turn = [(name, fact) for name, facts in sets.items() for fact in facts][: arguments.asked]
    of = {fact.id: name for name, fact in reversed(in_turn)}
    n_asked = dict.fromkeys(sets, 0)
    known: dict[str, Data] = {}  # by subject

    def asked() -> Iterator[Fact]:
        for name, fact in in_turn:
            if fact.subject not in known and len(known) < arguments.facts:
                n_asked[name] += 1
                yield fact

    for record in records(folder, asked(), lambda fact: examined(lm, of[fact.id], fact, len(known) < arguments.worded)):
        if "knockout" in record:
            known[record["fact"]["subject"]] = record
    return {"asked": n_asked, "known": with_rates_of_others(lm, [*known.values()])}


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


def with_rates_of_others(lm: LanguageModel, known: Sequence[Data]) -> list[dict[str, Any]]:
    """The records, those with words with the attributes rate, and that of the next such fact's words: the control."""
    found, worded = [], [record for record in known if "words" in record]
    for record in known:
        kept = {key: value for key, value in record.items() if key not in ("words", "fact")}
        found.append(kept | {"subject": record["fact"]["subject"]})
        if "words" in record:
            sides = {"own": record, "other": worded[(worded.index(record) + 1) % len(worded)]}
            flows = {of: attribute_flow(lm, Fact.from_dict(record["fact"]), one["words"]) for of, one in sides.items()}
            found[-1]["rates"] = {of: flow.rates.tolist() for of, flow in flows.items()}  # type: ignore[union-attr]
    return found


def steered(lm: LanguageModel, windows: int) -> dict[str, Any]:
    """The share of texts with a word of the list, and perplexity drift, over what is driven how far."""
    single = [word for word in insults() if is_one_token(lm, word)]
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


def is_one_token(lm: LanguageModel, word: str) -> bool:
    with suppress(UnknownTokenError):
        return token_id(lm, word) is not None
    return False


def shown(data: Data) -> dict[str, Any]:
    return model_by_model(data) | {"paper_alone": PAPER_ALONE, "most_drift": MOST_DRIFT}


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, shown, pictures=PICTURES, of_models=True)
if __name__ == "__main__":
    REPORT.main()
