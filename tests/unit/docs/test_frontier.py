import json
from pathlib import Path
from typing import Any

import frontier
import frontier_gates
import pytest
import tiny

from corrigenda import Fact

SAME, TEXT = "same_subject", "running_text"


def one(scores: list[float], kinds: list[str], shut: list[bool], opened: list[bool], n: int = 4) -> dict[str, Any]:
    """A set of facts with one probe each; by default all rows are those of fact 0 to n - 1."""
    values = {key: [1.0] * n for key in frontier.KEYS}
    row = {"subjects": [f"s{number}" for number in range(n)], "before": values, "after": values}
    probes = {"fact": [number % n for number in range(len(kinds))], "kind": kinds, "shut": shut, "open": opened}
    probes |= {"seen": [number % 2 == 0 for number in range(len(kinds))], "threshold": 0.5}
    return {"n": n, "rows": {"memit": row}, "probes": probes | {"scores": {"learned": scores}}}


# Four paraphrases, of which the entry says three where it speaks; two other questions, of which it spoils one; a text.
KINDS = ["paraphrases"] * 4 + [SAME] * 2 + [TEXT] + ["prompt"]
FOUND = one(
    [0.9, 0.8, 0.4, 0.2, 0.6, 0.1, 0.0, 1.0],
    KINDS,
    [False, False, False, True, True, True, True, False],
    [True, True, True, False, False, True, True, True],
)


def test_a_probe_is_right_by_whether_the_gate_is_open() -> None:
    def right(threshold: float, kind: str, seen: bool | None = None) -> list[int]:
        return [found for _, found in frontier.right_at(FOUND, "learned", threshold, kind, seen)]

    assert right(0.5, "paraphrases") == [1, 1, 0, 1]  # the last is said by the unedited model
    assert right(-1.0, "paraphrases") == [1, 1, 1, 0]
    assert right(0.5, SAME) == [0, 1]
    assert right(0.7, SAME) == [1, 1]
    assert right(0.5, "paraphrases", seen=True) == [1, 0]


def test_the_best_point_keeps_enough() -> None:
    found = frontier.curve(FOUND, "learned")
    assert found["best"][SAME] == 1.0
    assert found["best"]["paraphrases"] == 0.75  # between 0.6, which spoils the other question, and 0.8
    assert found["best"]["threshold"] == 0.6
    assert found["paraphrases"]["n"] == 4
    points = found["points"]
    assert (points[0][SAME], points[0]["paraphrases"], points[-1]["paraphrases"]) == (0.5, 0.75, 0.25)


def test_what_the_gate_does_and_what_the_value() -> None:
    found = frontier.oracle(FOUND)
    assert found["opens"] == {"paraphrases": 0.5, SAME: 0.5, TEXT: 0.0}
    assert found["open"]["paraphrases"]["mean"] == 0.75
    assert found["shipped"]["paraphrases"]["mean"] == 0.75
    assert found["shipped"][SAME]["mean"] == 0.5


def test_rows_are_compared_on_the_same_facts() -> None:
    left = {"subjects": list("abcdefgh"), "after": {key: [0.0] * 8 for key in frontier.TESTED}}
    right = {"subjects": left["subjects"], "after": {**left["after"], "bleed": [None] * 8, frontier.SAID[0]: [1.0] * 8}}
    found = frontier.against(left, right, frontier.TESTED)
    assert "bleed" not in found
    assert found[frontier.SAID[0]]["mean"] == 1.0
    assert found[frontier.SAID[0]]["p"] < 0.05 < found[frontier.SAID[1]]["p"]


def test_other_questions_are_of_other_relations() -> None:
    def asked(prompt: str, paraphrase: str, subject: str = "Ada", number: int = 0) -> Fact:
        return Fact(subject, prompt, "x", id=f"{number}", paraphrases=(paraphrase.replace("{}", subject),))

    born = [asked("Where was {} born?", "What is {}'s birthplace?"), asked("{}'s birthplace?", "Where was {} born?")]
    others = [asked(f"What is the {thing} of {{}}?", f"Which {thing} has {{}}?", "Bob") for thing in "abcdef"]
    found = frontier.from_questions(born[0], [*born, *others])
    assert len(set(found)) == frontier.OTHERS
    assert not any("birth" in text or "born" in text for text in found)
    assert all("Ada" in text for text in found)


def test_other_relations_in_the_words_of_pararel(tmp_path: Path) -> None:
    for name in ("P19", "P20", "P27"):
        patterns = [f"[X] {name} in [Y].", "[Y] is where [X] was."]
        (tmp_path / f"{name}.json").write_text(json.dumps({"patterns": patterns}))
    fact = Fact("Ada", "{} was born in", "Rome", "London", relation="P19", id="1")
    assert sorted(frontier.from_pararel(fact, tmp_path)) == ["Ada P20 in", "Ada P27 in"]


def test_a_relation_that_shares_a_form_asks_the_same(tmp_path: Path) -> None:
    for name, form in (("P19", "was born in"), ("P20", "died in"), ("P27", "comes from")):
        patterns = [f"[X] {form} [Y].", *(["[X] is from [Y]."] if name != "P20" else [])]
        (tmp_path / f"{name}.json").write_text(json.dumps({"patterns": patterns}))
    fact = Fact("Ada", "{} was born in", "Rome", "London", relation="P19", id="1")
    assert frontier.from_pararel(fact, tmp_path) == ("Ada died in",)
    (tmp_path / "P27.json").write_text(json.dumps({"patterns": ["[X] was born in [Y]."]}))  # the fact's own words
    (tmp_path / "P19.json").unlink()
    assert frontier.from_pararel(fact, tmp_path) == ("Ada died in",)


def test_gates_score_a_probe_by_its_own_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    lm = tiny.build("llama")
    facts = [Fact("Paris", "{} is located in the", "x"), Fact("Rome", "{} is the city of", "x")]
    probes = [frontier_gates.AskedProbe(number, fact.subject, fact.statement) for number, fact in enumerate(facts)]
    crossed = [
        frontier_gates.AskedProbe(1 - number, probe.subject, probe.prompt) for number, probe in enumerate(probes)
    ]
    monkeypatch.setattr(frontier_gates, "GATES", {name: frontier_gates.GATES[name] for name in ("subject", "hopfield")})
    found = frontier_gates.scores(lm, facts, [*probes, *crossed])
    assert found["subject"][:2] == pytest.approx([1.0, 1.0])
    assert max(found["subject"][2:]) < 0.999
    assert all(own > other for own, other in zip(found["hopfield"][:2], found["hopfield"][2:], strict=True))


def test_a_form_is_known_by_the_words_around_the_subject() -> None:
    fact = Fact("Rome", "{} is the city of", "x")
    probes = [frontier_gates.AskedProbe(0, "Ada", text) for text in ("Ada is the city of", "Ada is nothing but")]
    assert frontier_gates.forms_seen(probes, [fact]) == [True, False]
    assert frontier_gates.forms_seen(probes, []) == [False, False]
