from corrigenda import Fact
from editing.shared.entries import EntriesState

BORN = Fact("Thomas", "{} comes from", "Rome", relation="born in")
LIVES = Fact("Thomas", "{} comes from", "Paris", relation="lives in")
OTHER = Fact("Danielle", "{} comes from", "London")


def test_a_later_fact_takes_the_place_of_all_entries_that_it_is_about() -> None:
    """Two that name different relations are not about the same thing, and one of their prompt without a relation is
    about both."""
    state = EntriesState((BORN, OTHER, LIVES))
    assert state.kept([Fact("Thomas", "{} comes from", "Berlin")]) == [1]
    assert state.kept([Fact("thomas", "{} is of", "Berlin", relation="born in")]) == [1, 2]
    assert state.kept([BORN]) == [1, 2]  # asked for again
    assert state.kept([Fact("Thomas", "{} speaks", "Dutch")]) == [0, 1, 2]
