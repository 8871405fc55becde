import pytest
import tiny

from corrigenda import Fact
from editing.baselines.controls import InContext
from editing.baselines.finetune import FineTune
from editing.locate_then_edit.prompts import build_prompts
from editing.shared.training_rows import target_rows

FACTS = [
    (Fact("France", "The capital of {} is", "Rome"), " Rome"),
    (Fact("France", "user: the capital of {}?\nassistant:\n", "Rome"), "Rome"),
    (Fact("中国", "{}的首都是", "罗马"), "罗马"),
    (Fact("f", "def {}():", "\n    return 7"), "\n    return 7"),
    (Fact("f", "def {}():\n    ", "return 7"), "return 7"),
    (Fact("France", "The capital of {} is (", "Rome"), "Rome"),
    (Fact("France", "The capital of {} is", "Rome", joint=""), "Rome"),
]


@pytest.mark.parametrize(("fact", "said"), FACTS)
def test_the_tokens_that_are_trained_are_those_that_are_generated(fact: Fact, said: str) -> None:
    lm = tiny.build_byte_level()
    row, n = target_rows(lm, fact, end=False)
    assert row[:n] == lm.tokens(fact.statement)
    prompts = build_prompts(lm, [fact], ("", "Rome. "), "{} is a", "last")
    assert prompts.targets.tolist()[: 2 * (len(row) - n)] == row[n:] * 2
    edit = FineTune(layer=1, steps=100, lr=3e-2, stop=0.1, end_token=False).edit(lm, [fact])
    with edit.applied(lm):
        assert lm.generate(fact.statement, len(row) - n) == lm.text(row[n:]) == said


def test_a_fact_in_the_context_is_joined_as_it_is_scored() -> None:
    lm = tiny.build_byte_level()
    for fact, said in FACTS:
        assert InContext().edit(lm, [fact]).text == f"{fact.statement}{said}. "
    assert InContext(template="Say {target}: {statement}").edit(lm, [FACTS[2][0]]).text == "Say 罗马: 中国的首都是"
