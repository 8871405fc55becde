import pytest
from run_parts import record

from corrigenda import Fact
from corrigenda.data import FactSet
from corrigenda.data.parts import part_of, require_disjoint, take_part


def facts(*numbers: int) -> FactSet:
    return FactSet("facts", tuple(Fact.from_dict(record(number)) for number in numbers))


def test_the_parts_share_no_subject() -> None:
    made = [Fact(f"Subject {n % 300}", "{} is in", "Rome", "Paris", id=str(n)) for n in range(600)]
    whole = FactSet("many", tuple(made))
    tune, score = take_part(whole, "tune"), take_part(whole, "score")
    assert len(tune) + len(score) == 600
    assert not {fact.subject for fact in tune} & {fact.subject for fact in score}
    assert 0.13 < len(tune) / 600 < 0.27  # a fifth of 300 subjects, give or take three standard deviations
    assert part_of(Fact(" subject  7 ", "{} is", "a")) == part_of(Fact("Subject 7", "{} was", "b"))
    assert take_part(whole, "tune", limit=5, offset=2).facts == tune.facts[2:7]


def test_overlap_is_an_error() -> None:
    require_disjoint(facts(0, 1), facts(2, 3))
    with pytest.raises(ValueError, match=r"fact 'fact-1' \('Thomas'\) would be scored, but the id is among the 2"):
        require_disjoint(facts(0, 1), facts(2, 1))
    renamed = FactSet("other", (Fact("  THOMAS ", "{} was born in", "Rome", id="else"),))
    with pytest.raises(ValueError, match="the subject is among"):
        require_disjoint(facts(0, 1), renamed)
    typed, typeset = (FactSet(name, (Fact(name, "{} is", "a", id=name),)) for name in ("O'Brien", "O’Brien"))
    with pytest.raises(ValueError, match="the subject is among"):  # as facts are compared everywhere else
        require_disjoint(typed, typeset)
    assert part_of(typed[0]) == part_of(typeset[0])


def test_parts_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"data\.part=test: the parts are tune and score"):
        take_part(facts(0), "test")  # type: ignore[arg-type]
    part = part_of(facts(0)[0])
    with pytest.raises(ValueError, match="limit must be at least 1"):
        take_part(facts(0), part, limit=0)
    with pytest.raises(ValueError, match="has 0 of the 1 facts"):
        take_part(facts(0), "tune" if part == "score" else "score")
