"""docs/dictionaries.md: what a dictionary of an FFN's features holds, and whether its features steer.

A dictionary is trained, or read where its training is done, and measured over held-out text; so is its control, of a
model of the same shape with random weights. Facts are then edited by `feature`, each alone: by the feature that its
gradient names, and by one drawn at random. What is done when the time is up is kept.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from options import FILES, OUTPUTS, Data, Options, asking, deadline_of
from pages import Collected, beside, made, mean
from report import Report, model_by_model
from work import once, records

from corrigenda import Fact, LanguageModel, load, read_facts
from editing import FeatureSteering
from eval import METRICS, EvalSettings, Measurement, measure
from jobs.dictionary import DictionarySettings, figures_of
from locate.features.figures import randomised
from locate.pictures import chart, plot_text

NAME, SCRIPT = "dictionaries", "dictionaries.py"
USES = ("jobs.dictionary", "editing.FeatureSteering", "eval.measure")
SETTINGS = EvalSettings(max_new_tokens=5, perplexity_windows=0, only=("prompt", "paraphrases", "neighbourhood"))
KEYS = ("efficacy_success", "efficacy_magnitude", "free_generation_lenient", "paraphrase_success", "answer_kept")
NEIGHBOURS = 5
KEPT = "dictionary"  # the folder of a dictionary and its figures, beside what `once` notes
WAYS = ("chosen", "drawn")  # the feature that the gradient names, and one at random
options = asking(
    *("--model", "--minutes", "--anew"),
    layer=6,
    tokens=2_000_000,
    sampled=(DictionarySettings.sampled, "tokens sampled from the model to learn from, beside the text that ships"),
    data=(FILES / "counterfact.json", "facts that are steered to"),
    first=(1401, "the first of them, counted from 1"),
    facts=20,
    without_control=(False, "leave the model of random weights for another time"),
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected:
    lm, deadline = load(arguments.model), deadline_of(arguments)
    asked = DictionarySettings(layer=arguments.layer, tokens=arguments.tokens, sampled=arguments.sampled)
    work = arguments.work / lm.fingerprint[:8] / f"{asked.layer}-{asked.tokens}-{asked.sampled}"
    places = {name: work / name for name in ("model", "random", "steered")}
    figures = {
        "random": None,
        "model": once(places["model"] / "values.json", partial(held, asked, lm, lm, places["model"]), USES),
    }
    steering = FeatureSteering(dictionary=str(places["model"] / KEPT / figures["model"]["dictionary"]))
    facts = list(read_facts(arguments.data))[arguments.first - 1 :][: arguments.facts]
    n = figures["model"]["n_features"]
    steered = [*records(places["steered"], facts, partial(of_fact, lm, steering, n), USES, deadline)]
    if not arguments.without_control:
        random = randomised(lm, asked.seed)
        figures["random"] = once(
            places["random"] / "values.json", partial(held, asked, lm, random, places["random"]), USES, deadline
        )
    figures |= {"trained_on": asked.tokens, "of": asked.shipped + asked.sampled, "data": arguments.data.stem}
    runs = {name: made(place) for name, place in places.items() if place.is_dir()}
    return beside(NAME, lm.name, {**figures, "first": arguments.first, "steered": steered}, runs, arguments)


def held(asked: DictionarySettings, lm: LanguageModel, of: LanguageModel, place: Path) -> dict[str, Any]:
    """What the dictionary of a model holds, with its learning curve."""
    found = figures_of(asked, lm, of, place / KEPT)
    return {**found.summary(), "curve": found.curve}


def of_fact(lm: LanguageModel, steering: FeatureSteering, n_features: int, fact: Fact) -> dict[str, Any]:
    """A fact's figures before and after steering, by the way of choosing the feature."""
    fact = replace(fact, neighbourhood=fact.neighbourhood[:NEIGHBOURS])
    [before] = measure(lm, [fact], SETTINGS)
    drawn = Random(fact.id).randrange(n_features)
    found = {"id": fact.id, "subject": fact.subject, "before": values_of(before)}
    for way, editor in zip(WAYS, (steering, replace(steering, feature=drawn)), strict=True):
        edit = editor.edit(lm, [fact])
        with edit.applied(lm):
            [after] = measure(lm, [fact], SETTINGS, [before])
        found[way] = {**values_of(after), "feature": edit.origin.report[0]["feature"]}
    return found


def values_of(one: Measurement) -> dict[str, float]:
    """The figures of `KEYS` that there are."""
    return {key: one.values[key] for key in KEYS if key in one.values}


def digest(figures: Data) -> dict[str, Any]:
    """Means over facts with intervals, and the differences of the two ways."""
    table: dict[str, dict[str, Any]] = {}
    for key in KEYS:
        if there := [one for one in figures["steered"] if key in one["chosen"]]:
            subjects, ways = [one["subject"] for one in there], ("before", *WAYS) if key in there[0]["before"] else WAYS
            shares = METRICS[key].unit == "%"
            table[key] = {way: mean([one[way][key] for one in there], subjects, shares) for way in ways}
            table[key]["difference"] = mean([one["chosen"][key] - one["drawn"][key] for one in there], subjects)
    return {"table": table}


def draw(data: Data, path: Path) -> None:
    """The share of variance that is not explained as the dictionaries of the first model learn."""
    [(model, one), *_] = model_by_model(data)["models"].items()
    with chart(path, plot_text(f"dictionaries of layer {one['model']['layer']} of {model}", 90)) as axes:
        for name, label in (("model", "of the model"), ("random", "of random weights")):
            if one[name]:
                axes.plot(*zip(*one[name]["curve"], strict=True), label=label)
        axes.set_xlabel("tokens learned from")
        axes.set_ylabel("share of variance that is not explained")
        axes.legend()


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, pictures={"dictionaries.png": draw}, of_models=True)
if __name__ == "__main__":
    REPORT.main()
