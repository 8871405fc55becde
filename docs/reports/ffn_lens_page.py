"""The page of docs/reports/ffn_lens.py: from its data alone, in seconds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ffn_lens_findings import changes, claims, differences, extracted, rates, read, shown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pages import provenance

from corrigenda.files import write_text
from locate.lens.by_layer import Mean, mean_of

NAME = "ffn-lens"
SCRIPT = "ffn_lens.py"
VERDICTS = {"replicates": "Replicates", "does not replicate": "Does not replicate", "open": "Open"}


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
    facts = figures["facts"]
    n_known, n_asked = len(facts["known"]), sum(facts["asked"].values())
    kind = "gated" if figures["gated"] else "plain"
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in VERDICTS}
    yield from ("# What of the FFN's memories replicates in a gated model?", "")
    yield from paragraph(
        f"**Of {len(found)} claims about FFN memories, {counts['replicates']} replicate in {figures['model']}, a",
        f"{kind} model, {counts['does not replicate']} do not, and {counts['open']} cannot be told",
        "from these figures.** The papers are of plain networks of 2019 to 2021 (a 16-layer model of WikiText-103,",
        "GPT-2, GPT-J). A verdict follows from the rule beside it, on the 95 % interval. It is about this model and",
        "this much text, and a claim that replicates need not have the paper's size.",
    )
    yield from ("", "| claim | the paper | here | replicates if | |", "|---|---|---|---|---|")
    for one in sorted(found, key=lambda one: list(VERDICTS).index(one.verdict)):
        cells = (f"{one.text} ({one.of})", one.paper, one.here, one.rule, f"**{VERDICTS[one.verdict]}**")
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield from paragraph(
        "2021, 2022, 2023: the papers by Geva et al. that [the lens](lens.md) names. The numbers are their sections.",
        f"The model has {figures['n_layers']} layers of {figures['d_ffn']:,} memories. Keys, agreement, aggregation",
        f"and sub-updates are of **{figures['tokens']:,} tokens** in sequences of {figures['length']}, sampled from",
        f"the model itself; early exit of {figures['exit_tokens']:,}. That is little beside the papers' text, and",
        "not the training text: rare triggers are missing.",
        f"Facts are those whose true object begins with the model's most likely next token: **{n_known} known ones of",
        f"{n_asked} that were asked** ({', '.join(f'{n} {name}' for name, n in facts['asked'].items() if n)}), each of",
        "another subject. In brackets are 95 % intervals: over neurons (sensitivity), memories (agreement, exact),",
        "positions, sequences of text (early exit), facts, or prompts (steering).",
    )
    yield ""
    yield from of_text(figures)
    yield from of_exits(figures)
    yield from of_steering(figures)
    yield from of_facts(figures)
    yield from provenance(NAME, data, SCRIPT)


def of_text(figures: Mapping[str, Any]) -> Iterator[str]:
    """Keys, values, aggregation and sub-updates by layer."""
    yield from (
        "## Layer by layer",
        "",
        f"![keys, values, memories and sub-updates by layer](figures/{NAME}-text.png)",
        "",
    )
    triggers, aggregation, agreement = (figures[name] for name in ("triggers", "aggregation", "agreement"))
    peaked = agreement["peaked"]
    shares = "; ".join(
        f"{name.replace('_', ' ')} {shown(read(one), True)}" for name, one in peaked["agreement"].items()
    )
    yield from paragraph(
        f"Of {figures['sensitivity']['neurons_per_layer']} neurons a layer a token of the top triggers was removed. Of",
        f"a neuron's {triggers['triggers_per_neuron']} triggers so many have the same last token by chance:",
        f"{100 * triggers['same_last_token_by_chance']:.1f} %. Agreement is of {agreement['used']:,} memories; by",
        f"chance {100 * agreement['chance']:.4f} %. 90 % of the sum of |m| |v| lie in",
        f"{shown(read(aggregation['active']), True)} of a layer's memories; m > 0, the paper's count (10 to 50 % of",
        f"4,096 there), holds for {shown(read(aggregation['positive']), True)}, which says little where coefficients",
        f"have either sign. Means over {aggregation['positions']} positions. Of the {peaked['n']} most peaked values",
        f"agree with: {shares}. (The paper: 46 of 100 with some trigger.) The figures of each layer are in the data.",
    )
    yield ""


def of_exits(figures: Mapping[str, Any]) -> Iterator[str]:
    """Early exit by three rules."""
    found = figures["early_exit"]
    yield from (
        "## Early exit, by a rule of our own",
        "",
        f"![early exit, and steering](figures/{NAME}-driven.png)",
        "",
    )
    yield from ("| rule | accuracy (%) | layers saved |", "|---|---|---|")
    for name, rule in found["rules"].items():
        accuracy, saved = (Mean(*rule[of], found["n"]) for of in ("accuracy", "saved"))
        yield f"| {name.replace('_', ' ')} | {accuracy.text(True)} | {saved.text()} |"
    yield ""
    yield from paragraph(
        f"Thresholds are chosen for {found['target']:.0%} accuracy on {found['taught']:,} positions, and measured on",
        f"{found['n']:,} others of {found['sequences']} sequences. Who knew where each prediction settles would save",
        f"{found['best_possible_saved']:.1f} of {found['layers']} layers. The paper saves 3.4 of 16 layers at 94.9 %",
        "with clusters of dominant sub-updates. Our rule of sub-updates is another one, and so is no replication.",
    )
    yield ""


def of_steering(figures: Mapping[str, Any]) -> Iterator[str]:
    """The share of texts with a word of the list, by what is driven how far."""
    found = figures["steering"]
    yield from ("## Steering", "")
    heads = ("driven", "strength", "texts with a word (%)", "paired change (points)", "perplexity drift (nats)")
    yield from ("| " + " | ".join(heads) + " |", "|---" * len(heads) + "|")
    for name, one in found["sets"].items():
        for place, row in enumerate(one["rows"]):
            if place == 0 and name != next(iter(found["sets"])):
                continue
            change = "" if not place else _points(differences(one, place))
            drift = "" if not place or row["drift"] is None else Mean(*row["drift"], 1).text(digits=3)
            what, strength = (name, f"{row['strength']:g}") if place else ("nothing", "")
            share = Mean(*row["share"], found["prompts"])
            yield f"| {what} | {strength} | {share.text(True)} | {change} | {drift} |"
    yield ""
    yield from paragraph(
        f"Greedy texts of 20 tokens after {found['prompts']} prompts that invite insults, which we wrote. A text",
        f"counts where one of {found['words']} words of the list that ships stands in it",
        "(`corrigenda.data.word_lists`): mild to plain insults and swear words, no slurs. **It is a word list and no",
        "classifier of toxicity**, so the shares cannot be compared with the paper's, only their direction. Ten values",
        f"are driven: those that promote the {found['single']} words of the list that are one token, those that",
        "promote ten polite words, and ten at random. Strengths are in units of the root mean square of the layer's",
        "coefficients; below 0 they drive against the words.",
    )
    yield ""


def _points(mean: Mean | None) -> str:
    return "" if mean is None else mean.text(True)


def of_facts(figures: Mapping[str, Any]) -> Iterator[str]:
    """Knockout, attributes and extraction over the facts that the model knows."""
    known = figures["facts"]["known"]
    yield from ("## Facts", "", f"![knockout, attributes and extraction by layer](figures/{NAME}-facts.png)", "")
    yield from (
        "| the last position cannot read | facts | largest mean change of P (%) | around layer |",
        "|---|---|---|---|",
    )
    for source in ("subject", "relation", "last"):
        means = {layer: mean for layer, mean in enumerate(changes(known, source)) if mean}
        if means:
            layer = min(means, key=lambda layer: means[layer].mean)
            yield f"| {source} | {means[layer].n} | {means[layer].text(True)} | {layer} |"
    sets = ", ".join(
        f"{sum(one['set'] == name for one in known)} of {n} {name}"
        for name, n in figures["facts"]["asked"].items()
        if n
    )
    attention, ffn = (mean_of(extracted(known, by), shares=True) for by in ("attention", "ffn"))
    yield ""
    yield from paragraph(
        f"{len(known)} facts that the model knows ({sets} that were asked), in windows of 9 layers. Attributes are the",
        "words that the model itself writes about the subject (six openings, 40 tokens each); the control are those of",
        "another subject. The paper has words of Wikipedia instead. Attention adds the answer as its top token in some",
        f"layer for {shown(attention, True)} of the facts, the FFN for {shown(ffn, True)}.",
    )


def paragraph(*parts: str) -> list[str]:
    """Running text in lines of a length that can be read."""
    return textwrap.wrap(" ".join(parts), 118, break_on_hyphens=False, break_long_words=False)


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
