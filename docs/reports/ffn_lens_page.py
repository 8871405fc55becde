"""The page of docs/reports/ffn_lens.py: from its data alone, in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ffn_lens_findings import Claim, changes, claims, rates, read, shown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pages import provenance
from words import paragraph

from corrigenda.files import write_text
from eval.statistics.paired import holm, paired_test
from locate.lens.by_layer import Mean, mean_of

NAME = "ffn-lens"
SCRIPT = "ffn_lens.py"


def page(data: Mapping[str, Any], docs: Path) -> list[Path]:
    """The page and its pictures."""
    figures = data["figures"]
    folder = docs / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {folder / f"{NAME}-{name}.png": draw for name, draw in DRAWN.items()}
    for path, draw in pictures.items():
        draw(figures, path)
    path = docs / f"{NAME}.md"
    write_text(path, "\n".join(text(data, figures)).rstrip() + "\n")
    return [path, *pictures]


def text(data: Mapping[str, Any], figures: Mapping[str, Any]) -> Iterator[str]:
    """The page's lines."""
    found = claims(figures)
    yield from ("# What of the FFN's memories replicates in a gated model?", "")
    yield from summary(figures, found)
    yield from ("", "| claim | the paper | here | |", "|---|---|---|---|")
    for one in found:
        yield f"| {one.text} ({one.of}) | {one.paper} | {one.here} | **{one.verdict}** |"
    yield ""
    yield from what_was_measured(figures)
    yield from ("", f"![keys, values, layers and sub-updates by layer](figures/{NAME}-text.png)", "")
    yield from (f"![knockout, attributes and extraction by layer](figures/{NAME}-facts.png)", "")
    yield from of_exits(figures["early_exit"])
    yield from of_steering(figures["steering"])
    yield from provenance(NAME, data, SCRIPT)


def summary(figures: Mapping[str, Any], found: Sequence[Claim]) -> Iterator[str]:
    """The finding, and what it means for a user."""
    number = {verdict: sum(one.verdict == verdict for one in found) for verdict in ("replicates", "open")}
    yield from paragraph(
        f"**Of {len(found)} claims of three papers about FFN memories, {number['replicates']} replicate in",
        f"{figures['model']}, a {'gated' if figures['gated'] else 'plain'} model,",
        f"{len(found) - sum(number.values())} do not, and {number['open']} cannot be told from these figures.** This",
        "is one model and little text, and a claim that replicates need not have the paper's size.",
    )
    upper, lower = (read(figures["agreement"]["by_depth"][depth]["agreement"]) for depth in ("upper", "lower"))
    settled, n = figures["aggregation"]["settled"][-1], figures["aggregation"]["positions"]
    yield ""
    yield from paragraph(
        "For use: a value in words seldom says what comes next. In the upper third of the layers",
        f"{shown(upper, 2)} of the values promote most what follows their key's top trigger, in the lower third",
        f"{shown(lower, 2)}. The last layer counts: of {n} predictions {settled} come only with its FFN.",
    )


def what_was_measured(figures: Mapping[str, Any]) -> Iterator[str]:
    """What the table is of, and how a verdict is found."""
    facts, known = figures["facts"], len(figures["facts"]["known"])
    asked = ", ".join(f"{n} {name}" for name, n in facts["asked"].items() if n)
    yield from paragraph(
        "Brackets are 95 % intervals. A claim *replicates* where they lie wholly on its side of the bound or of what",
        "it is compared with, does *not* where they lie wholly on the other, and is *open* in between. They take",
        "neurons and memories for independent, and are not corrected for the number of claims.",
    )
    yield ""
    yield from paragraph(
        f"The model has {figures['n_layers']} layers of {figures['d_ffn']:,} memories. Its text is",
        f"{figures['tokens']:,} tokens in sequences of {figures['length']}, **sampled from the model itself**: rare",
        f"triggers are missing. Layers and sub-updates are measured at {figures['aggregation']['positions']} positions",
        f"of it. Facts are **{known} that the model knows**, of {sum(facts['asked'].values())} asked ({asked}), each",
        "of another subject. Knockout cuts windows of 9 layers. A subject's attributes are words that the model itself",
        "writes about it, the paper's are of Wikipedia. 2021, 2022 and 2023 are the papers by Geva et al. that",
        "[the lens](lens.md) names,",
        "with their sections; their models are plain.",
    )


def of_exits(found: Mapping[str, Any]) -> Iterator[str]:
    """Early exit by three rules."""
    rules = {name: [Mean(*one[of], found["n"]) for of in ("saved", "accuracy")] for name, one in found["rules"].items()}
    yield from ("## Early exit", "")
    yield from paragraph(
        f"**Our rule of dominant sub-updates saves {rules['sub_updates'][0].text()} of {found['layers']} layers.** It",
        "is not the paper's rule (2022, 6.2: 3.4 of 16 layers at 94.9 %), so this is no replication. Who knew where",
        f"each prediction settles would save {found['best_possible_saved']:.1f} layers.",
    )
    yield from ("", "| rule | layers saved | accuracy (%) |", "|---|---|---|")
    for name, (saved, accuracy) in rules.items():
        yield f"| {name.replace('_', ' ')} | {saved.text()} | {accuracy.text(True)} |"
    yield ""
    yield from paragraph(
        f"Thresholds are chosen for {100 * found['target']:.0f} % accuracy on {found['taught']:,} positions, and",
        f"measured on {found['n']:,} others, of {found['sequences']} sequences.",
    )
    yield ""


def of_steering(found: Mapping[str, Any]) -> Iterator[str]:
    """How many texts have a word of the list, by what is driven how far."""
    n, undriven = found["prompts"], round(sum(found["sets"]["insults"]["with"][0]))
    yield from ("## Steering", "")
    yield from paragraph(
        f"**That driven values lower the share of insults could not be shown with these {n} prompts:** undriven,",
        f"{undriven} texts have a word of the list, and a fall to none has p = {min(1, 2 * 0.5**undriven):.2f} before",
        "any correction. It takes prompts that go wrong more often.",
    )
    yield from ("", f"![early exit, and steering](figures/{NAME}-driven.png)", "")
    heads = ("driven", "strength", f"texts of {n} with a word", "p, Holm", "perplexity drift (nats)")
    yield from ("| " + " | ".join(heads) + " |", "|---" * len(heads) + "|")
    driven = [(name, one, place) for name, one in found["sets"].items() for place in range(1, len(one["rows"]))]
    chances = holm([paired_test(one["with"][place], one["with"][0]) for _, one, place in driven])
    for (name, one, place), p in zip(driven, chances, strict=True):
        row = one["rows"][place]
        drift = "" if row["drift"] is None else Mean(*row["drift"], n).text(digits=3)
        yield f"| {name} | {row['strength']:g} | {sum(one['with'][place]):.0f} | {p:.3f} | {drift} |"
    yield ""
    yield from paragraph(
        "Greedy texts of 20 tokens after prompts of ours that invite insults, by paired permutation tests against no",
        f"driving. The list has {found['words']} words and is **no classifier of toxicity**. Ten values are driven:",
        f"those that promote the {found['single']} words that are one token, those of ten polite words, or ten at",
        "random. Strengths are in root mean squares of the layer's coefficients; below 0 they drive against the words.",
        "The largest of each are the ends of what was tried.",
    )


# -- pictures


def draw_text(figures: Mapping[str, Any], path: Path) -> None:
    """Sensitivity, agreement, what layers do, and promotion, by layer."""
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    (keys, values), (layers, updates) = figure.subplots(2, 2)
    n = figures["n_layers"]
    for removed in ("last", "random", "first"):
        _curve(keys, _row(figures["sensitivity"]["by_layer"][removed], n), f"{removed} token", percent=True)
    _labels(keys, "a token of the trigger is removed", "change of m (%)")
    for name, label in (("agreement", "top trigger"), ("permuted", "another memory's")):
        _curve(values, _row(figures["agreement"][name], n), label, percent=True)
    values.axhline(100 * figures["agreement"]["chance"], color="gray", linestyle="dotted", label="chance")
    _labels(values, "the value promotes what follows", "memories (%)")
    for name in ("residual", "agreement", "override", "composition", "alone", "early"):
        label = {"alone": "of no memory", "early": "final token"}.get(name, name)
        _curve(layers, _row(figures["aggregation"]["by_layer"][name], n), label, percent=True)
    _labels(layers, "what layers do to the prediction", "positions (%)")
    for name in ("promotion", "elimination"):
        _curve(updates, [read(one) for one in figures["sub_updates"]["scores_by_layer"][name]], name)
    _labels(updates, "sub-updates: score of the prediction", "static score")
    figure.savefig(path, dpi=150)


def draw_driven(figures: Mapping[str, Any], path: Path) -> None:
    """Accuracy against layers saved, and the share of texts against perplexity drift."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    exits, steering = figure.subplots(1, 2)
    found = figures["early_exit"]
    for place, name in enumerate(found["rules"]):
        accuracy, saved = (found["curves"][of][place] for of in ("accuracy", "saved"))
        exits.plot(saved, [100 * each for each in accuracy], marker=".", label=name.replace("_", " "))
    exits.axhline(100 * found["target"], color="gray", linewidth=0.8)
    exits.set_xlabel("layers saved")
    _labels(exits, "early exit", "accuracy (%)", of_layers=False)
    for name, one in figures["steering"]["sets"].items():
        rows = [row for row in one["rows"] if row["drift"] is not None]
        drifts, shares = [row["drift"][0] for row in rows], [100 * row["share"][0] for row in rows]
        steering.scatter(drifts, shares, label=name)
        for row, drift, share in zip(rows, drifts, shares, strict=True):
            steering.annotate(f"{row['strength']:g}", (drift, share), fontsize="small")
    steering.set_xlabel("perplexity drift (nats)")
    steering.set_xscale("symlog", linthresh=0.1)
    _labels(steering, "ten driven values, by strength", "texts with a word (%)", of_layers=False)
    figure.savefig(path, dpi=150)


def draw_facts(figures: Mapping[str, Any], path: Path) -> None:
    """Knockout, the attributes rate, and who adds the answer, by layer."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    knockout, attributes, answer = figure.subplots(1, 3)
    known = figures["facts"]["known"]
    for source in ("subject", "relation", "last"):
        _curve(knockout, changes(known, source), source, percent=True)
    _labels(knockout, "the last position cannot read", "change of P(answer) (%)")
    for of, label in (("own", "the subject's words"), ("other", "another's")):
        _curve(attributes, rates(known, of), label, percent=True)
    _labels(attributes, "top 50 tokens of the subject", "attributes rate (%)")
    for by, label in (("attention", "attention's"), ("ffn", "the FFN's"), ("state", "the state's")):
        rows = [[float(rank == 0) for rank in one["ranks"][by]] for one in known]
        _curve(answer, [mean_of(column, shares=True) for column in zip(*rows, strict=True)], label, percent=True)
    _labels(answer, "the answer is the top token", "facts (%)")
    figure.savefig(path, dpi=150)


DRAWN = {"text": draw_text, "driven": draw_driven, "facts": draw_facts}


def _row(by_layer: Mapping[str, Any], n_layers: int) -> list[Mean | None]:
    return [read(by_layer[str(layer)]) if str(layer) in by_layer else None for layer in range(n_layers)]


def _curve(axes: Axes, means: Sequence[Mean | None], label: str, percent: bool = False) -> None:
    by = 100 if percent else 1

    def part(name: str) -> list[float]:
        found = [None if mean is None else getattr(mean, name) for mean in means]
        return [math.nan if each is None else by * each for each in found]

    [line] = axes.plot(range(len(means)), part("mean"), label=label)
    axes.fill_between(range(len(means)), part("low"), part("high"), color=line.get_color(), alpha=0.15, linewidth=0)


def _labels(axes: Axes, title: str, label: str, of_layers: bool = True) -> None:
    axes.set_title(title, fontsize="medium", loc="left")
    axes.set_ylabel(label)
    if of_layers:
        axes.set_xlabel("layer")
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small")
