"""The parts of a fact's page: what each one finds in a model, and the grids that show it.

A part is a line in `PARTS`. It finds with a function of `locate`, on the model without and with the edit, and its grids
hold that result's own figures: nothing is computed here.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from jobs.explain.circuits import circuit_grids, find_circuit
from jobs.explain.grids import Field, Grid, cells, fill, from_the_last, with_scores
from jobs.explain.part import PageContext, PagePart
from locate import (
    CausalTraceResult,
    KnowledgeNeuronsResult,
    LogitAttributionResult,
    LogitLensResult,
    Noise,
    SubUpdatesResult,
    causal_trace,
    knowledge_neurons,
    logit_attribution,
    logit_lens,
    sub_updates,
)
from locate.lens.words import bottom, read_static, top

# -- the lens


def _lens(asked: PageContext) -> tuple[LogitLensResult, ...]:
    return tuple(logit_lens(asked.lm, asked.fact.statement, token) for token in asked.tokens)


def _lens_grids(asked: PageContext, found: Sequence[LogitLensResult]) -> list[Grid]:
    first = found[0]
    fields = [
        Field("top token", "text", from_the_last([list(row) for row in first.words])),
        Field("P(top token)", "share", from_the_last(cells(first.top_probabilities)), colours=True),
    ]
    for one in found:
        fields.append(Field(f"P({one.token!r})", "share", from_the_last(cells(one.probabilities)), colours=True))
        fields.append(Field(f"rank of {one.token!r}", "whole", from_the_last(cells(one.ranks))))
    settled = first.saturation[-1]
    return [
        Grid(
            title="the top token after each layer",
            note=f"After the last token the top token is that of the last layer from layer {settled} on.",
            row="layer",
            column="token",
            rows=_layers(len(first.words)),
            columns=first.tokens,
            fields=tuple(fields),
            shown="top token",
        )
    ]


# -- causal tracing


def _traces(asked: PageContext) -> tuple[CausalTraceResult, ...]:
    settings = asked.settings
    noise = Noise(samples=settings.trace_samples, seed=settings.seed)
    window = min(settings.trace_window, asked.lm.n_layers)
    return tuple(
        causal_trace(asked.lm, asked.fact, asked.answer, site=site, window=window, noise=noise)
        for site in settings.trace_sites
    )


_RESTORED = {"block": "the state after a layer", "ffn": "FFN outputs", "attention": "attention outputs"}


def _trace_grids(asked: PageContext, found: Sequence[CausalTraceResult]) -> list[Grid]:
    return [
        Grid(
            title=f"restored: {_RESTORED[one.site]}" + (f", in windows of {one.window} layers" * (one.window > 1)),
            note=f"P({one.answer!r}) is {100 * one.p_clean:.2f} %, and {100 * one.p_corrupted:.2f} % with the subject "
            f"hidden by noise ({one.samples} draws).",
            row="token",
            column="layer",
            rows=one.tokens,
            columns=tuple(map(str, range(one.scores.shape[0]))),
            fields=(
                Field("indirect effect", "signed_share", cells(one.indirect_effects.T), colours=True),
                Field(f"P({one.answer!r}) restored", "share", cells(one.scores.T), colours=True),
            ),
            marked=tuple(range(*one.subject)),
            marks="rows",
        )
        for one in found
    ]


# -- knowledge neurons


def _neurons(asked: PageContext) -> tuple[KnowledgeNeuronsResult, ...]:
    return (knowledge_neurons(asked.lm, asked.fact, asked.answer, steps=asked.settings.steps),)


def too_few_steps(found: KnowledgeNeuronsResult) -> str:
    """Names the layers whose sums cannot be right: what an answer loses without a layer lies between P - 1 and P."""
    p, error = found.probability, 0.01
    wrong = [
        str(layer)
        for layer, total in zip(found.layers, found.by_layer().tolist(), strict=True)
        if not p - 1 - error <= total <= p + error
    ]
    if not wrong:
        return ""
    return (
        f" Too few steps for layer {', '.join(wrong)}: the sum there is more than can be lost, so that its "
        "attributions say too much. More steps: job.steps=50."
    )


def _neuron_grids(asked: PageContext, found: Sequence[KnowledgeNeuronsResult]) -> list[Grid]:
    [one] = found
    lm, words = asked.lm, asked.settings.words
    k = min(asked.settings.neurons, one.attributions.shape[1])
    best, which = one.attributions.topk(k, dim=1)
    coarse = set(one.neurons())
    said = [read_static(lm, lm.memory(layer).values[row]) for layer, row in zip(one.layers, which, strict=True)]

    beside, nothing = partial(_beside, k), [None] * len(one.layers)
    fields = (
        Field("attribution", "signed_share", beside(one.by_layer().tolist(), lambda i, j: float(best[i, j])), True),
        Field("neuron", "text", beside(["all"] * len(one.layers), lambda i, j: str(int(which[i, j])))),
        Field(
            "coefficient's size",
            "number",
            beside(nothing, lambda i, j: float(one.activations[i, which[i, j]])),
        ),
        Field(
            "in the coarse set",
            "text",
            beside(nothing, lambda i, j: "yes" if (one.layers[i], int(which[i, j])) in coarse else "no"),
        ),
        Field("its value promotes", "words", beside(nothing, lambda i, j: with_scores(top(lm, said[i][j], words)))),
        Field(
            "its value eliminates", "words", beside(nothing, lambda i, j: with_scores(bottom(lm, said[i][j], words)))
        ),
    )
    return [
        Grid(
            title=f"what the coefficients give to P({one.question.answer!r})",
            note=f"P is {100 * one.probability:.2f} %; integrated gradients, {one.steps} steps; neurons with "
            f"more than 20 % of the largest attribution (the coarse set): {len(coarse)}.{too_few_steps(one)}",
            row="layer",
            column="neurons",
            rows=tuple(map(str, from_the_last(one.layers))),
            columns=("all", *(str(place + 1) for place in range(k))),
            fields=fields,
            shown="neuron",
        )
    ]


# -- sub-updates


def _sub_updates(asked: PageContext) -> tuple[SubUpdatesResult, ...]:
    settings = asked.settings
    token = asked.tokens[0]
    return (sub_updates(asked.lm, asked.fact.statement, token=token, k=settings.sub_updates, words=settings.words),)


def _sub_update_grids(asked: PageContext, found: Sequence[SubUpdatesResult]) -> list[Grid]:
    [one] = found
    depth, k = one.dominant.shape
    beside, nothing = partial(_beside, k), [None] * depth
    shown = [[words.texts[0] for words in row] for row in one.promoted]
    fields = (
        Field(
            f"gives to {one.token!r}",
            "number",
            beside(one.net.tolist(), lambda i, j: float(one.scores[i, j])),
            colours=True,
        ),
        Field("size", "number", beside(nothing, lambda i, j: float(one.sizes[i, j])), colours=True),
        Field("promotes first", "text", beside(one.top_tokens, lambda i, j: shown[i][j])),
        Field("neuron", "text", beside(nothing, lambda i, j: str(int(one.dominant[i, j])))),
        Field("coefficient", "number", beside(nothing, lambda i, j: float(one.coefficients[i, j]))),
        Field("promotes", "words", beside(nothing, lambda i, j: with_scores(one.promoted[i][j]))),
        Field("eliminates", "words", beside(nothing, lambda i, j: with_scores(one.eliminated[i][j]))),
        Field("top token after the layer", "text", beside(one.top_tokens, lambda i, j: None)),
        Field(f"rank of {one.token!r} there", "whole", beside(one.ranks.tolist(), lambda i, j: None)),
        Field("promotion by all sub-updates", "number", beside(one.promotion.tolist(), lambda i, j: None)),
        Field("elimination by all sub-updates", "number", beside(one.elimination.tolist(), lambda i, j: None)),
        Field("share of the dominant ones", "share", beside(one.share.tolist(), lambda i, j: None)),
    )
    return [
        Grid(
            title="dominant sub-updates after the last token",
            note=f"The top token is that of the last layer from layer {one.saturation} on. Scores are those of static "
            "vectors: what counts is which is larger.",
            row="layer",
            column="sub-updates",
            rows=_layers(depth),
            columns=("all", *(str(place + 1) for place in range(k))),
            fields=fields,
            shown="promotes first",
        )
    ]


# -- attribution of the logit


def _attribution(asked: PageContext) -> tuple[LogitAttributionResult, ...]:
    token, *others = asked.tokens
    return (logit_attribution(asked.lm, asked.fact.statement, token, others[0] if others else None),)


def _attribution_grids(asked: PageContext, found: Sequence[LogitAttributionResult]) -> list[Grid]:
    [one] = found
    depth, heads = one.heads.shape
    gives = torch.cat([one.attention[:, None], one.heads, one.ffn[:, None]], dim=1)
    largest = []
    for layer in range(depth):
        best = one.neurons[layer].abs().topk(min(asked.settings.neurons, one.neurons.shape[1])).indices.tolist()
        largest.append([f"neuron {neuron}: {float(one.neurons[layer, neuron]):+.4f}" for neuron in best])
    nothing = [None] * heads
    return [
        Grid(
            title=one.name,
            note=f"It is {one.logit:.3f}: the embedding gives {one.embedding:.3f}, attention "
            f"{float(one.attention.sum()):.3f}, the FFNs {float(one.ffn.sum()):.3f}, and what is constant "
            f"{one.constant:.3f}{' (before a soft cap)' if one.capped else ''}.",
            row="layer",
            column="part",
            rows=_layers(depth),
            columns=("attention", *(f"head {head}" for head in range(heads)), "FFN"),
            fields=(
                Field("gives", "number", from_the_last(cells(gives)), colours=True),
                Field(
                    "its largest neurons", "lines", from_the_last([[None, *nothing, largest[i]] for i in range(depth)])
                ),
            ),
        )
    ]


def _beside(k: int, whole: Sequence[Any], values: Callable[[int, int], Any]) -> list[Any]:
    """Cells of k columns for each layer, with something for the whole layer before them."""
    rows = fill(len(whole), k, values)
    return from_the_last([[first, *row] for first, row in zip(whole, rows, strict=True)])


def _layers(depth: int) -> tuple[str, ...]:
    return tuple(map(str, reversed(range(depth))))


PARTS: Mapping[str, PagePart] = {
    "lens": PagePart(
        "What the layers say",
        "The logit lens: the token that the model would say if it stopped after a layer, at each token of the prompt.",
        _lens,
        _lens_grids,
    ),
    "trace": PagePart(
        "Which states carry the answer",
        "Causal tracing: the subject is hidden by noise, and one state at a time is put back as it was. Without the "
        "edit the old object's probability is followed, with it the new one's; of a fact without it, that of what the "
        "model itself says. The subject's tokens are marked.",
        _traces,
        _trace_grids,
    ),
    "neurons": PagePart(
        "Knowledge neurons",
        "What the FFN's coefficients after the prompt give to the answer's probability. Without the edit the answer is "
        "the old object, with it the new one; of a fact without it, what the model itself says. The first column is a "
        "layer's sum. A value is read as it stands: where a gated network's coefficient is below 0, what it promotes "
        "and what it eliminates change places.",
        _neurons,
        _neuron_grids,
    ),
    "sub_updates": PagePart(
        "Dominant sub-updates",
        "What the FFN of each layer adds after the prompt is a sum over its memories: those that add most, and what "
        "they promote. The first column is the whole layer, with the token that the lens reads behind it.",
        _sub_updates,
        _sub_update_grids,
    ),
    "attribution": PagePart(
        "Heads and FFNs",
        "What attention, each of its heads and the FFN of every layer add to the logit of the new object's first token "
        "less that of the old one's; where there is one of them, or both begin alike, to that of the one token.",
        _attribution,
        _attribution_grids,
    ),
    "circuit": PagePart(
        "Circuit",
        "By how much the answer's logit, less that of a counterfactual's object, falls when an edge is ablated: sums "
        "over each source's edges (EAP-IG). Without the edit the answer is the old object, with it the new one.",
        find_circuit,
        circuit_grids,
    ),
}
"""The parts by name, in the order of the page; what the edit wrote and the prompts' answers have files of their own."""
