import json

import tiny

from corrigenda import Fact
from eval import Case, EvalSettings, evaluate

FACT = Fact(
    *("Thomas", "the city of {} is", "Rome", "Paris"),
    id="one",
    paraphrases=("Thomas stands in the city of",),
    neighbourhood=("the city of green is",),
    generation=("Thomas is",),
)


def test_a_case_made_of_its_record_has_the_same_record() -> None:
    small = EvalSettings(max_new_tokens=4, fluency_tokens=8, perplexity_windows=3, perplexity_window=16)
    [case] = evaluate(tiny.build("llama"), [FACT], small).cases
    record = json.loads(json.dumps(case.to_dict()))
    assert len(record["after"]["values"]) > 5
    assert Case.from_dict(record).to_dict() == record
    assert Case.from_dict(case.to_dict()).to_dict() == record
