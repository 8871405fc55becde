import random
from dataclasses import replace

import pytest

from corrigenda import Fact
from corrigenda.data.requests import (
    ActiveRequests,
    Request,
    active_facts,
    history,
    left_out,
    normalised,
    reports_together,
    select_active,
)


def ask(target: str | None, prompt: str = "{} lies in", relation: str | None = None, subject: str = "Ben") -> Fact:
    return Fact(subject, prompt, target, target_true="Atlantis", relation=relation)


WHERE = "where is {}? In"
CASES: dict[str, tuple[list[Fact], str, str]] = {
    "others": ([ask("Rome"), ask("Rome", subject="Tim")], "- -", "aa"),
    "repeats": ([ask("Rome"), ask("Rome")], "- r0", "ra"),
    "supersedes": ([ask("Rome"), ask("Oslo")], "- c0", "oa"),
    "other prompt, no relation": ([ask("Rome"), ask("Oslo", "{} has")], "- -", "aa"),
    "other prompt, same relation": ([ask("Rome", relation="P1"), ask("Oslo", WHERE, "P1")], "- c0", "oa"),
    "other prompt, same relation and object": ([ask("Rome", relation="P1"), ask("Rome", WHERE, "P1")], "- r0", "ra"),
    "same prompt, other relation": ([ask("Rome", relation="P1"), ask("Oslo", relation="P2")], "- -", "aa"),
    "relation named by the first only": ([ask("Rome", relation="P1"), ask("Oslo")], "- c0", "oa"),
    "relation named by the second only": (
        [ask("Rome"), ask("Oslo", relation="P1"), ask("Rome", "{} has", "P1")],
        "- c0 c1",
        "ooa",
    ),
    "there and back": ([ask("Rome"), ask("Oslo"), ask("Rome")], "- c0 c1", "roa"),
    "there and back, and again": ([ask("Rome"), ask("Oslo"), ask("Rome"), ask("Rome")], "- c0 c1 r2", "rora"),
    "erased": ([ask("Rome"), ask(None)], "- c0", "oa"),
    "erased twice, and asked for again": ([ask(None), ask(None), ask("Rome")], "- r0 c1", "ooa"),
    "spelt otherwise": ([ask("Rome", subject="Ben  Nevis"), ask(" rome", subject="ben nevis")], "- r0", "ra"),
    "composed otherwise": ([ask("Rome", subject="Caf\u00e9"), ask("Rome", subject="Cafe\u0301")], "- r0", "ra"),
    "set by a typographer": ([ask("Rome", subject="O'Brien-Ng"), ask("Oslo", subject="O’Brien‑Ng")], "- c0", "oa"),
    "in other quotes": ([ask("Rome", subject='"Ben"'), ask("Oslo", subject="“Ben”")], "- c0", "oa"),
}
"""Requests; which earlier one each contradicts (c) or repeats (r); whether it is active, overwritten or repeated."""


@pytest.mark.parametrize("name", CASES)
def test_the_rule(name: str) -> None:
    facts, said, fates = CASES[name]
    words = {"c": "contradicts", "r": "repeats"}
    assert history(facts) == [{} if one == "-" else {words[one[0]]: int(one[1:])} for one in said.split()]
    places = [tuple(place for place, fate in enumerate(fates) if fate == kind) for kind in "aor"]
    assert select_active(facts) == ActiveRequests(*places)
    assert active_facts(facts) == tuple(facts[number] for number in places[0])


def test_normalised() -> None:
    assert normalised("  The\tEiffel\n Tower ") == "the eiffel tower"
    assert normalised("STRASSE") == normalised("Straße")
    assert normalised("ﬁve") == "five"
    assert normalised("\ufeffHou\u00adston\u200b") == normalised("Houston\u200e") == "houston"  # as copied from a page


def test_against_all_pairs() -> None:
    draw = random.Random(0)
    for _ in range(60):
        facts = [
            ask(
                draw.choice(["Rome", "Oslo", None]),
                draw.choice(["{} lies in", "{} has", "{} is"]),
                draw.choice([None, "P1", "P2"]),
                draw.choice(["Ben", "Tim"]),
            )
            for _ in range(14)
        ]
        refused = set(draw.sample(range(14), 3))
        asked = [Request.of(fact) for fact in facts]
        found, after = history(facts, refused), select_active(facts)
        for number, request in enumerate(asked):
            earlier = [n for n in range(number) if n not in refused and request.same_thing(asked[n])]
            word = "" if not earlier else "repeats" if asked[earlier[-1]].object == request.object else "contradicts"
            assert found[number] == ({word: earlier[-1]} if earlier else {})
            later = [n for n in range(number + 1, 14) if request.same_thing(asked[n])]
            fate = after.active if not later else after.repeated
            if later and asked[later[-1]].object != request.object:
                fate = after.overwritten
            assert number in fate
        assert sorted(after.active + after.overwritten + after.repeated) == list(range(14))


def test_thousands_of_requests() -> None:
    """Linear: all about one subject, which a comparison of all pairs would take minutes for."""
    facts = [ask("Rome", f"{{}} is {n}", relation=f"P{n}" if n % 2 else None) for n in range(20_000)]
    assert history(facts) == [{}] * len(facts)
    assert len(select_active(facts).active) == len(facts)


def test_what_an_edit_of_several_reports() -> None:
    asked = [("a", "x"), ("b", "x"), ("a", "y"), ("a", "z"), ("a", "z")]
    facts = [Fact(subject, "{} is", new, id=str(number)) for number, (subject, new) in enumerate(asked)]
    now = select_active(facts)
    reports = reports_together(facts, now)
    assert reports == [
        {"superseded_by": "4"},
        {},
        {"superseded_by": "4"},
        {"repeated_by": "4"},
        {"contradicts": "2", "repeats": "3"},
    ]
    assert [left_out(report) for report in reports] == [True, False, True, True, False]


def test_the_relation_counts_where_both_name_one_else_the_prompt() -> None:
    asked = Request.of(Fact("Paris", "{} is in", None, "France", relation="Country"))
    same = Fact("Rome", "{}  IS in", None, "Italy")
    assert asked.same_relation(Request.of(same))
    assert not asked.same_relation(Request.of(replace(same, relation="continent")))
    assert asked.same_relation(Request.of(Fact("Rome", "{} lies in", None, "Italy", relation="country")))
    assert not asked.same_relation(Request.of(Fact("Rome", "{} lies in", None, "Italy")))
