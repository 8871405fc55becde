from collections.abc import Callable

import pytest

from corrigenda import Fact
from corrigenda.data.relations import Relation, relations, relations_of, relations_to_learn
from corrigenda.data.side_effects import OTHER_RELATIONS, same_subject

BORN = Fact("Ada Lovelace", "{} was born in", "Rome", "London", relation="P19")


@pytest.mark.parametrize("shipped", [relations, relations_to_learn])
def test_every_relation_is_well_formed(shipped: Callable[[], tuple[Relation, ...]]) -> None:
    named = [(one.kind, one.name) for one in shipped()]
    assert len(set(named)) == len(named) > 200
    for kind in {one.kind for one in shipped()}:
        forms = [form for one in shipped() if one.kind == kind for form in one.forms]
        assert len(set(forms)) == len(forms), kind
        for form in forms:
            Fact("Ada", form, "Rome")  # one slot, no space at the end
            assert form[0] == form[0].upper(), form


def test_the_relation_of_a_fact() -> None:
    assert [(one.kind, one.name, one.answer) for one in relations_of(BORN)] == [("person", "place of birth", "city")]
    assert relations_of(Fact("Ada", "{} came into the world in", "Rome", relation="place of birth")) == relations_of(
        BORN
    )
    assert relations_of(Fact("Ada", "{} was born in", "Rome")) == relations_of(BORN)  # by its form
    assert relations_of(Fact("Ada", "{} has never been to", "Rome")) == ()
    shared = relations_of(Fact("Ada", "The music of {} is", "jazz", relation="P136"))
    assert {one.kind for one in shared} == {"person", "organisation", "work"}


def test_other_relations_about_the_subject() -> None:
    found = same_subject(BORN)
    assert found == same_subject(BORN)
    assert len(set(found)) == OTHER_RELATIONS
    people = [one for one in relations() if one.kind == "person"]
    asked = [one for one in people for form in one.forms if form.replace("{}", BORN.subject) in found]
    assert len(asked) == OTHER_RELATIONS
    assert "place of birth" not in {one.name for one in asked}
    assert [one.answer for one in asked].count("city") == 3  # all that there are: death, work, residence
    assert found != same_subject(Fact(BORN.subject, BORN.prompt, "Oslo", "London", relation="P19"))  # of another fact
