"""docs/layers.md: in which layers a subject has a key of its own.

An update V + a (C^-1 k*)^T of ROME acts on a key k by k^T C^-1 k* / k*^T C^-1 k* of what it does to its own. That share
is worked out at every layer for the subject in paraphrases and for every token of the neighbourhood prompts. Nothing is
edited.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from drawn import band
from options import OUTPUTS, Data, Options, asking
from pages import Collected, made, making, mean
from report import Report
from torch import Tensor

from corrigenda import Fact, LanguageModel, load, read_facts
from corrigenda.forward.interventions import Read, intervene
from corrigenda.models.sites import Site
from corrigenda.moments.second_moment import SecondMoment, second_moments
from corrigenda.prompts import encode, subject_span
from corrigenda.system.progress import track
from editing import Rome
from locate.pictures import chart, ticks_at_layers

NAME, SCRIPT = "layers", "keys.py"
USES = ("corrigenda.moments.second_moment", "corrigenda.forward.interventions", "corrigenda.data")
KINDS = {"paraphrases": "the subject in paraphrases", "neighbours": "the neighbours' strongest token"}
options = asking(
    "--model",
    data=("embedded", "facts with paraphrases and neighbourhood prompts"),
    facts=(60, "how many of them"),
    layers=("", "comma-separated; by default all"),
    work=OUTPUTS / "keys",
)


def collect(arguments: Options) -> Collected:
    lm = load(arguments.model)
    layers = [int(layer) for layer in arguments.layers.split(",") if layer] or list(range(lm.n_layers))
    facts = [
        fact
        for fact in read_facts(arguments.data, limit=arguments.facts)
        if fact.paraphrases and fact.neighbourhood and all(fact.subject in prompt for prompt in fact.paraphrases)
    ]
    if len({fact.subject for fact in facts}) < 2:
        raise SystemExit(f"--data {arguments.data}: fewer than two subjects have both paraphrases and neighbours")
    work = arguments.work / lm.fingerprint[:8]
    with making(work, USES):
        moments = second_moments(lm, layers)
        found = [of_one(lm, fact, moments) for fact in track(facts, "Comparing keys")]
    figures = {
        **{"model": lm.name, "layers": layers, "default_layer": Rome().resolved_layer(lm)},
        **{"data": arguments.data, "tokens": next(iter(moments.values())).tokens},
        "subjects": [fact.subject for fact in facts],
        "shares": {kind: [one[kind] for one in found] for kind in KINDS},
    }
    return Collected(figures, {"keys": made(work)})


def of_one(lm: LanguageModel, fact: Fact, moments: Mapping[int, SecondMoment]) -> dict[str, list[float]]:
    """By kind and layer: the mean share over paraphrases; of the neighbours' tokens the largest one."""
    layers = list(moments)
    own = coefficients(lm, fact.statement, layers)
    at = last_of(lm, fact.statement, fact.subject)
    paraphrases = [(coefficients(lm, p, layers), last_of(lm, p, fact.subject)) for p in fact.paraphrases]
    neighbours = [coefficients(lm, prompt, layers) for prompt in fact.neighbourhood]
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for layer, moment in moments.items():
        key = own[layer][at]
        direction = moment.solve(key[None])[0]
        scale = float(key @ direction)
        found["paraphrases"].append(fmean(float(p[layer][place] @ direction) / scale for p, place in paraphrases))
        # The first token attends to itself alone: its coefficients are of a size of their own, and the same everywhere.
        found["neighbours"].append(max(float((n[layer][1:] @ direction).max()) / scale for n in neighbours))
    return found


def coefficients(lm: LanguageModel, prompt: str, layers: Sequence[int]) -> dict[int, Tensor]:
    """The coefficients at each token, (position, d_ffn) in float64, by layer."""
    ids = torch.tensor([encode(lm.tokenizer, prompt)], device=lm.device)
    with torch.inference_mode(), ExitStack() as stack:
        seen = {layer: stack.enter_context(intervene(lm, Site("coefficients", layer), Read())) for layer in layers}
        lm.model(input_ids=ids)
    return {layer: one.value[0].double().cpu() for layer, one in seen.items()}


def last_of(lm: LanguageModel, prompt: str, subject: str) -> int:
    """The position of the subject's last token."""
    return subject_span(lm.tokenizer, prompt, subject)[1] - 1


def digest(figures: Data) -> dict[str, Any]:
    """By kind and layer the mean share over facts, and in which layer the kinds are furthest apart."""
    means = {
        kind: [mean(column, figures["subjects"]) for column in zip(*figures["shares"][kind], strict=True)]
        for kind in KINDS
    }
    apart = [one["mean"] - other["mean"] for one, other in zip(*means.values(), strict=True)]
    return {"means": means, "apart": apart, "widest": figures["layers"][apart.index(max(apart))]}


def draw(data: Data, path: Path) -> None:
    layers, default = data["figures"]["layers"], data["figures"]["default_layer"]
    with chart(path, "What an update does elsewhere, as a share of what it does to its own key") as axes:
        for kind, found in data["digest"]["means"].items():
            band(axes, layers, found, KINDS[kind], marker=".")
        axes.axvline(default, color="gray", linestyle="dotted", label=f"ROME's default layer, {default}")
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set(xlabel="layer", ylabel="share")
        ticks_at_layers(axes, layers)


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, digest, pictures={"layers.png": draw})
if __name__ == "__main__":
    REPORT.main()
