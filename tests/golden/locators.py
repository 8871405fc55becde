"""Golden values of the locators: the summary of what each finds, and the file that it is saved in."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from golden.made import FACTS, editor, model
from relation_parts import known
from safetensors.torch import load_file

import locate
from corrigenda import Fact, LanguageModel
from corrigenda.dictionaries.dictionary import FeatureDictionary
from corrigenda.moments.text import Text
from locate.circuits.results import CircuitSurvey
from locate.features.facts import FactFeatures, fact_features
from locate.features.figures import DictionaryFigures, measure_dictionary
from locate.features.over_facts import FeatureSurvey
from locate.features.training import DictionaryTraining
from locate.flow.attributes import attribute_flow
from locate.flow.function import decode_early, transplant
from locate.flow.relation_results import RelationSurvey
from locate.lens.aggregation import aggregation
from locate.lens.agreement import agreement
from locate.lens.early_exit import EarlyExitSettings, early_exit
from locate.lens.jacobian import JacobianSettings
from locate.lens.saturation import saturation_events
from locate.lens.sensitivity import sensitivity
from locate.lens.triggers import trigger_examples
from locate.neurons.knowledge_neurons import layers_by_attribution
from locate.neurons.suppression import highest_activation, random_neurons
from locate.question import ask

FAMILIES = ("llama", "gpt2")
FACT, OTHER = FACTS[:2]
PROMPT = FACT.statement
TEXT = Text(tokens=256, length=16)
COUNTERFACTUALS = [
    Fact(subject, each.prompt, None, city)
    for each, subjects in ((FACT, ("the red tower", "the blue tower")), (OTHER, ("Big Ben", "green violin")))
    for subject, city in zip(subjects, ("Berlin", "London"), strict=True)
]
NEURONS = [(1, 3), (2, 5)]


def file(result: Any, folder: Path) -> dict[str, Any]:
    """A result's summary, its table's columns, and the tensors of its file."""
    result.save(folder)
    tensors = {path.name: load_file(path) for path in sorted(folder.rglob("*.safetensors"))}
    again = type(result).load(folder).summary() == result.summary()
    columns = [str(column.header) for column in result.table().columns]
    return {"summary": result.summary(), "columns": columns, "file": tensors, "the same from the disk": again}


def trace(**settings: Any) -> Callable[[LanguageModel], Any]:
    noise = locate.Noise(samples=3, **settings.pop("noise", {}))
    return lambda lm: locate.causal_trace(lm, FACT, "top", noise=noise, **settings)


def knocked(lm: LanguageModel) -> list[Any]:
    return [locate.attention_knockout(lm, fact, "top", window=2) for fact in FACTS[:2]]


def neurons(lm: LanguageModel, **settings: Any) -> list[Any]:
    return [locate.Neurons(steps=4, **settings).find(lm, fact) for fact in FACTS[:2]]


def related(lm: LanguageModel, template: str = "the language of {} is", name: str = "tongue") -> locate.LinearRelation:
    facts = known(lm, template, name=name)
    return locate.linear_relation(lm, facts, samples=4, layers=(1, 2), ranks=(1, 4, 16))


def circuit(lm: LanguageModel, number: int = 0, **settings: Any) -> locate.Circuit:
    return locate.knowledge_circuit(
        lm, FACTS[number], "Paris", COUNTERFACTUALS, **({"steps": 2, "exact": 2} | settings)
    )


def circuit_change(lm: LanguageModel) -> locate.CircuitChange:
    says = lm.generate(PROMPT, max_new_tokens=1).split()[-1]
    fact = replace(FACT, target_true=says, target_new="piano")
    edit = editor("rome").edit(lm, [fact])
    return locate.circuit_change(lm, fact, edit, COUNTERFACTUALS, steps=1, exact=0)


def dictionary(lm: LanguageModel) -> FeatureDictionary:
    draw = torch.Generator().manual_seed(0)
    encoder, decoder = (torch.randn(48, lm.memory(1).d_model, generator=draw) for _ in range(2))
    return FeatureDictionary(1, encoder, torch.zeros(48), decoder, torch.zeros(lm.memory(1).d_model), k=4)


def trained(lm: LanguageModel) -> DictionaryFigures:
    asked = DictionaryTraining(1, "input", 48, 4, 192, 512, 0, length=16, held_out=4, batch=64, buffer=256)
    texts, held = asked.texts(lm)
    found, curve = replace(asked, multi_topk=True).train(lm, texts)
    return measure_dictionary(lm, found, held, curve)


def features(lm: LanguageModel, fact: Fact = FACT) -> FactFeatures:
    edit = editor("rome").edit(lm, [fact])
    return fact_features(lm, dictionary(lm), fact, "top", edit, top=3, words=3, contexts=2, tokens=256)


def triggers(lm: LanguageModel) -> Any:
    return trigger_examples(lm, TEXT, t=3)


def read_edit(name: str) -> Callable[[LanguageModel], Any]:
    def read(lm: LanguageModel) -> Any:
        found = triggers(lm)
        edit = editor(name).edit(lm, FACTS[:2])

        def prefixes(layer: int, neuron: int) -> list[str]:
            return [one.prefix for one in found.examples(lm, layer, neuron)]

        return locate.edit_lens(lm, edit, prefixes, components=3, neurons=2, words=3)

    return read


RESULTS: Mapping[str, Callable[[LanguageModel], Any]] = {
    **{f"trace_{site}": trace(site=site, window=2) for site in ("block", "ffn", "attention")},
    **{f"trace_severed_{part}": trace(severed=part) for part in ("ffn", "attention")},
    **{f"trace_attribution_{site}": trace(site=site, window=2, method="attribution") for site in ("block", "ffn")},
    "trace_rome_noise": trace(noise={"recipe": "rome"}),
    "trace_average": lambda lm: locate.average([locate.causal_trace(lm, fact, "top") for fact in FACTS[:2]]),
    "knockout": lambda lm: knocked(lm)[0],
    "knockout_average": lambda lm: locate.average(knocked(lm)),
    "relation": related,
    "relations": lambda lm: RelationSurvey.of([related(lm), related(lm, "the tongue of {} is", "speech")]),
    "circuit": circuit,
    "circuits": lambda lm: CircuitSurvey.of([circuit(lm), circuit(lm, 1)]),
    "circuit_eap": lambda lm: circuit(lm, method="eap", ablation="zero", metric="log_probability", ranking="signed"),
    "circuit_activations": lambda lm: circuit(lm, method="eap_ig_activations", ablation="mean"),
    "circuit_change": circuit_change,
    "dictionary": lambda lm: measure_dictionary(lm, dictionary(lm), TEXT.sequences(lm)),
    "dictionary_trained": trained,
    "features": features,
    "features_together": lambda lm: FeatureSurvey.of([features(lm), features(lm, OTHER)]),
    "attributes": lambda lm: attribute_flow(lm, FACT, ["London England tower river"], "top", k=5),
    "decode_early": lambda lm: decode_early(lm, PROMPT, {"true": "Paris", "new": "Rome"}),
    "transplant_add": lambda lm: transplant(lm, PROMPT, OTHER.statement, "Rome"),
    "transplant_replace": lambda lm: transplant(lm, PROMPT, OTHER.statement, "Rome", "replace"),
    "logit_lens": lambda lm: locate.logit_lens(lm, PROMPT, "Rome"),
    "jacobian_lens": lambda lm: locate.logit_lens(
        lm, PROMPT, "Rome", locate.jacobian_lens(lm, JacobianSettings(TEXT, samples=4))
    ),
    "logit_attribution": lambda lm: locate.logit_attribution(lm, PROMPT, "Rome", "Paris"),
    "early_exit": lambda lm: early_exit(lm, EarlyExitSettings(TEXT, per_sequence=2, k=5)),
    "backward": lambda lm: locate.backward_lens(lm, FACT, "top"),
    "edit_lens_rome": read_edit("rome"),
    "edit_lens_enhance": read_edit("enhance"),
    "edit_lens_grace": read_edit("grace"),
    "saturation": lambda lm: saturation_events(lm, TEXT, texts=8, k=4),
    "triggers": triggers,
    "sensitivity": lambda lm: sensitivity(lm, triggers(lm), neurons=4),
    "agreement": lambda lm: agreement(lm, triggers(lm)),
    "aggregation": lambda lm: aggregation(lm, TEXT, texts=8),
    "sub_updates": lambda lm: locate.sub_updates(lm, PROMPT, token="Rome", k=3, words=3),
    "values": lambda lm: locate.read_values(lm, k=4),
    **{
        f"knowledge_neurons_{method}": partial(locate.knowledge_neurons, asked=FACT, method=method, steps=4)
        for method in ("integrated_gradients", "gradient", "activation")
    },
    "knowledge_neurons_paper": lambda lm: locate.knowledge_neurons(
        lm, FACT, "top", rule="right", steps=4, layers=[1, -1]
    ),
    "neurons": lambda lm: neurons(lm)[0],
    "neurons_activation": lambda lm: neurons(lm, method="activation", adaptive=False, share=0.5)[0],
    "neuron_counts": lambda lm: locate.average(neurons(lm)),
}
"""What gives a result with a summary, a table and a file."""


def others(lm: LanguageModel) -> dict[str, Any]:
    """What gives plain values."""
    found = [one for refined in neurons(lm) for one in refined.results]
    traces = locate.average([locate.causal_trace(lm, fact, "top", site="ffn", window=2) for fact in FACTS[:2]])
    return {
        "suggested by traces": locate.suggest_layers(traces, 2),
        "suggested by neurons": locate.suggest_layers(locate.average(neurons(lm)), 2),
        "layers by attribution": layers_by_attribution(found, 2),
        "most active": highest_activation(found, NEURONS),
        "random": random_neurons(lm, NEURONS),
        "promoting": list(locate.promoters(lm, ["Rome", "Paris"], 5)),
        "asked": ask(lm, FACT, "top"),
    }


def both(find: Callable[[LanguageModel], Any], folder: Path) -> dict[str, Any]:
    return {family: file(find(model(family)), folder / family) for family in FAMILIES}


MAKERS: dict[str, Callable[[Path], Any]] = {
    **{f"locators/{name}": partial(both, find) for name, find in RESULTS.items()},
    "locators/others": lambda folder: {family: others(model(family)) for family in FAMILIES},
}
