import hashlib

from corrigenda import Fact
from corrigenda.data import FactSet


def some(*ids: str) -> FactSet:
    return FactSet("some", tuple(Fact(id_, "{} is", "a", id=id_) for id_ in ids))


def test_an_order_is_by_the_seed_and_the_ids_alone() -> None:
    facts = some(*"abcdefgh")
    orders = [facts.shuffled(seed) for seed in (0, 1, 2)]
    assert len({tuple(fact.id for fact in order) for order in (facts, *orders)}) == 4
    assert all(sorted(fact.id for fact in order) == list("abcdefgh") for order in orders)
    by_hand = sorted("abcdefgh", key=lambda id_: hashlib.sha256(f"1\0{id_}".encode()).digest())
    assert [fact.id for fact in orders[1]] == by_hand
    assert some(*"hgfedcba").shuffled(1) == orders[1]  # whatever order the source has
    assert orders[0].shuffled(1) == orders[1]


def test_it_is_noted_and_tells_runs_apart() -> None:
    facts = some(*"abcdef")
    shuffled = facts.shuffled(3)
    assert (facts.order, shuffled.order, shuffled[:2].order) == (None, 3, 3)
    assert facts.fingerprint != shuffled.fingerprint
    assert facts.unordered_fingerprint == shuffled.unordered_fingerprint
    assert facts.unordered_fingerprint != facts[:5].unordered_fingerprint
