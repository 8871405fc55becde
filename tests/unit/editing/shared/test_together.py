import pytest

from corrigenda import Fact, LanguageModel
from eval import EvalSettings, evaluate

OLD = Fact("Big Ben", "{} stands in", "Paris", "London", id="old")
OTHER = Fact("Thomas", "{} plays the", "guitar", "piano", id="other")
AGAIN = Fact("Thomas", "{} plays the", "guitar ", "violin", id="again")
NEW = Fact("Big Ben", "{} stands in", "Rome", "London", id="new")
MEASURED = EvalSettings(generate=False, perplexity_windows=0)


@pytest.mark.parametrize("given", [[OLD, NEW], [OTHER, AGAIN]])
def test_evaluate_says_that_facts_are_not_all_in_force(
    given: list[Fact], lm: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(evaluate(lm, given, MEASURED).cases) == 2
    [said] = [record.getMessage() for record in caplog.records]
    counts = (1, 0) if given[0] is OLD else (0, 1)
    assert f"{counts[0]} of 2 facts are contradicted by later ones and {counts[1]} are asked for again" in said
    assert given[0].id in said
    caplog.clear()
    evaluate(lm, [OTHER, NEW], MEASURED)
    assert caplog.text == ""
