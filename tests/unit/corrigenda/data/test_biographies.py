from collections import Counter
from itertools import permutations

import pytest

from corrigenda.data.biographies import attributes, biographies, candidates
from corrigenda.errors import SettingsError


def test_facts_are_of_different_persons_and_a_longer_list_begins_with_a_shorter() -> None:
    found = biographies(1000)
    assert found[:50] == biographies(50)
    assert len({fact.subject for fact in found}) == 1000
    assert {fact.subject for fact in biographies(50, seed=1)}.isdisjoint(fact.subject for fact in found[:50])
    assert Counter(fact.relation for fact in found) == dict.fromkeys(candidates(), 200)
    assert all(fact.target_new in candidates()[str(fact.relation)] for fact in found)


def test_several_relations_of_a_person_are_told_one_after_the_other() -> None:
    found = biographies(10, each=5)
    assert [len({fact.subject for fact in part}) for part in (found[:5], found[5:], found)] == [1, 1, 2]
    assert [fact.relation for fact in found[:5]] == [attribute.name for attribute in attributes()]


def test_values_are_drawn_uniformly() -> None:
    """Of 1,600 draws from 32 values each has 50; four standard deviations are 28."""
    found = Counter(fact.target_new for fact in biographies(8000, each=5) if fact.relation == "major")
    assert len(found) == 32
    assert all(abs(n - 50) <= 28 for n in found.values())


def test_no_value_begins_as_another_of_its_relation() -> None:
    """Else the probability of the shorter would hold that of the longer."""
    for attribute in attributes():
        assert not [pair for pair in permutations(attribute.values, 2) if pair[0].startswith(pair[1])]


@pytest.mark.parametrize(("n", "each"), [(65537, 1), (1, 6), (1, 0)])
def test_what_there_is_not_is_refused_in_a_line(n: int, each: int) -> None:
    with pytest.raises(SettingsError, match=r"65536 names and 5 relations.*1 to 5 of a person"):
        biographies(n, each=each)
