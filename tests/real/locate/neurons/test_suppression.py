from statistics import fmean

from corrigenda import Fact, LanguageModel
from locate.neurons.locator import Neurons
from locate.neurons.suppression import probabilities_scaled, random_neurons

FACTS = [
    ("France", "The capital of {} is", "Paris", "The capital city of {} is"),
    ("Germany", "The capital of {} is", "Berlin", "The capital city of {} is"),
    ("Italy", "The capital of {} is", "Rome", "The capital city of {} is"),
    ("Japan", "The official language of {} is", "Japanese", "In {}, most people speak"),
]


def test_located_neurons_matter_in_the_real_model(smollm2: LanguageModel) -> None:
    ratios = []
    for subject, prompt, answer, paraphrase in FACTS:
        fact = Fact(subject, prompt, None, answer, paraphrases=(paraphrase.replace("{}", subject),))
        refined = Neurons(steps=5).find(smollm2, fact)
        sets = [(), refined.neurons, *(random_neurons(smollm2, refined.neurons, seed) for seed in range(3))]
        found = [probabilities_scaled(smollm2, result.question, sets, 0.0) for result in refined.results]
        before, located, *random = [fmean(values) for values in zip(*(each.tolist() for each in found), strict=True)]
        ratios.append((located / before, fmean(random) / before))
    assert fmean(located for located, _ in ratios) < fmean(random for _, random in ratios) - 0.1
    assert sum(located < random for located, random in ratios) >= 3
