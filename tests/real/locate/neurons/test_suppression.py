from statistics import fmean

from corrigenda import Fact, LanguageModel
from locate.neurons.locator import Neurons
from locate.neurons.suppression import scaling_check

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
        suppressed = scaling_check(smollm2, refined, factor=0.0, draws=3)
        ratios.append((suppressed.located / suppressed.before, suppressed.random / suppressed.before))
    assert fmean(located for located, _ in ratios) < fmean(random for _, random in ratios) - 0.1
    assert sum(located < random for located, random in ratios) >= 3
