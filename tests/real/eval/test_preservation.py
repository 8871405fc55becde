import pytest
from edits_parts import random_update

from corrigenda import Fact, LanguageModel
from corrigenda.facts import Probe
from eval import EvalSettings, measure

SETTINGS = EvalSettings(perplexity_windows=0, max_new_tokens=8)
# In the form of zsRE's locality prompts.
QUESTIONS = (
    "nq question: who wrote the song about the yellow river?",
    "nq question: when was the first bridge over the lake opened?",
    "nq question: where does the old man live in the novel?",
    "nq question: how many seasons of the show are there?",
    "nq question: who played the king in the last film?",
    "nq question: what is the name of the sea north of the island?",
)
FACT = Fact(
    "The Eiffel Tower",
    "{} is located in the city of",
    "Rome",
    "Paris",
    locality=tuple(Probe(question, "nobody knows") for question in QUESTIONS),
)


def up_to_the_end(lm: LanguageModel) -> list[str]:
    """The answers by the rule before: up to the end token or a line break."""
    return lm.generate(list(QUESTIONS), SETTINGS.preservation_tokens, stop_at_newline=True)


def test_a_random_update_is_told_from_none(smollm2: LanguageModel) -> None:
    before = measure(smollm2, [FACT], SETTINGS)
    answers = up_to_the_end(smollm2)
    assert not any(answer.strip() for answer in answers)
    (none,) = measure(smollm2, [FACT], SETTINGS, before)
    with random_update(smollm2, 0.5, 6).applied(smollm2):
        assert up_to_the_end(smollm2) == answers  # by the rule before, all is preserved
        (random,) = measure(smollm2, [FACT], SETTINGS, before)
    assert none.values["preservation"] == 1
    assert random.values["preservation"] <= 0.5
    assert none.values["locality_kl"] == pytest.approx(0, abs=1e-6)
    assert random.values["locality_kl"] > 1e-3  # an end is as probable as before, nearly; rounding gives 1e-6
    assert none.values["blank_answers"] == random.values["blank_answers"] == 1


def test_a_judged_answer_ends_at_a_line_break(smollm2: LanguageModel) -> None:
    prompt = "Question: Who wrote Hamlet?\nAnswer:"
    fact = Fact("Hamlet", "{} was written by", "Marlowe", portability=(Probe(prompt, "Marlowe"),))
    (found,) = measure(smollm2, [fact], EvalSettings(perplexity_windows=0, max_new_tokens=20))
    [record] = found.probes("portability")
    assert "\n" in smollm2.generate(prompt, 20)
    assert record.answer == smollm2.generate(prompt, 20, stop_at_newline=True)
    assert record.answer
    assert "\n" not in record.answer
