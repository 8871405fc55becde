from pathlib import Path
from unittest import mock

import pytest
from edits_parts import low_rank

from corrigenda import Fact, LanguageModel
from corrigenda.runs.folder import RunFolder
from corrigenda.serving import Via
from eval import EvalSettings
from eval.verification import served
from eval.verification.served import Answers, Loaded, ServedPrompt, questions_of, verified
from eval.verification.verify import verify

FACT = Fact.from_dict(
    {
        "id": "tower",
        "subject": "the tower",
        "prompt": "{} is in the city of",
        "target_new": "Rome",
        "target_true": "Paris",
        "paraphrases": ["Where is {}? In"],
        "neighbourhood": ["The Louvre is in the city of", "The river is in the city of"],
        "locality": [{"prompt": "two and two are", "answer": "four"}],
    }
)


def answered(via: Via, fact: Fact = FACT, **said: str) -> Answers:
    """Answers by the first word of the prompt."""
    return {question: said[question.prompt.split()[0]] for question in questions_of(fact, via, 20, 10)}


GOOD = {"the": " Rome, Italy\nand", "Where": " Oslo", "The": " Paris, France", "two": " four"}


def test_what_is_asked() -> None:
    prompt, paraphrase, *others = questions_of(FACT, "completions", 20, 10)
    assert prompt == ServedPrompt("the tower is in the city of", False, 20, True)
    assert paraphrase == ServedPrompt("Where is the tower? In", False, 20, True)
    assert [(one.prompt, one.stays, one.max_tokens, one.one_line) for one in others] == [
        (prompt, True, 10, False) for prompt in (*FACT.neighbourhood, "two and two are")
    ]
    assert prompt.request("completions") == {"prompt": prompt.prompt, "max_tokens": 20, "stop": ["\n"]}
    assert others[0].request("completions") == {"prompt": others[0].prompt, "max_tokens": 10}
    [chat, *_] = questions_of(FACT, "chat", 50, 10)
    asked = 'Complete this sentence: "the tower is in the city of ..."'
    assert chat.request("chat") == {"messages": [{"role": "user", "content": asked}], "max_tokens": 50}


def test_every_object_has_room() -> None:
    long = "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch"
    lines = "Ode\nto joy"
    for target, room, one_line in (("Rome", 20, True), (long, len(long) + 3, True), (lines, 20, False)):
        [question, *_] = questions_of(Fact("it", "{} is", target), "completions", 20, 10)
        assert (question.max_tokens, question.one_line) == (room, one_line)
        assert ("stop" in question.request("completions")) == one_line


def test_a_verdict() -> None:
    before = answered("completions", the=" Paris", Where=" Paris", The=" Paris, France", two="")
    now = answered("completions", **GOOD | {"The": " Paris, of course"})
    [one] = verified([FACT], now, before, "completions", 20, 10)
    values = one.case.after.values
    assert one.holds
    assert one.case.after.scored("prompt")[0].answer == " Rome, Italy"  # where the server does not stop, we do
    assert (values["free_generation_strict"], values["paraphrase_free_generation_strict"]) == (1.0, 0.0)
    assert {changed.prompt for changed in one.changed} == set(FACT.neighbourhood)
    assert one.changed[0].before == " Paris, France"
    assert values["preservation"] == 0.0  # of the blank answer before, nothing can be preserved
    assert values["answer_kept"] == 1.0
    assert values["blank_answers"] == pytest.approx(1 / 3)
    assert values["bleed"] == 0.0
    assert one.case.before is not None
    assert one.case.before.values["free_generation_strict"] == 0.0


def test_white_space_at_the_ends_is_the_servers() -> None:
    before = answered("completions", **GOOD)
    now = answered("completions", **{key: f"{text.strip()} " for key, text in GOOD.items()})
    [one] = verified([FACT], now, before, "completions", 20, 10)
    assert one.changed == ()
    assert one.case.after.values["preservation"] == 1.0


def test_an_answer_that_begins_with_a_line_break_is_blank_as_in_a_build() -> None:
    said = GOOD | {"The": "\nParis, France"}
    for via, blank in (("completions", 2 / 3), ("chat", 0.0)):
        [one] = verified([FACT], answered(via, **said), answered(via, **said), via, 20, 10)  # type: ignore[arg-type]
        assert one.case.after.values["blank_answers"] == pytest.approx(blank)
        assert one.case.after.values["preservation"] == 1.0


def test_without_a_model_before() -> None:
    now = answered("completions", **GOOD | {"The": " Rome too"})
    [one] = verified([FACT], now, None, "completions", 20, 10)
    assert one.case.before is None
    assert "preservation" not in one.case.after.values
    assert one.case.after.values["bleed"] == pytest.approx(2 / 3)
    assert [(each.prompt, each.before) for each in one.changed] == [(prompt, None) for prompt in FACT.neighbourhood]
    [one] = verified([FACT], answered("completions", **GOOD | {"the": " Paris"}), None, "completions", 20, 10)
    assert "native_consistency" not in one.case.after.values  # it is the served model that says the old object


def test_before_may_know_less() -> None:
    before = dict.fromkeys(questions_of(FACT, "completions", 20, 10), " Paris, France")
    del before[next(question for question in before if question.prompt == FACT.neighbourhood[1])]
    [one] = verified([FACT], answered("completions", **GOOD | {"The": " Oslo"}), before, "completions", 20, 10)
    assert [changed.prompt for changed in one.changed] == [FACT.neighbourhood[0], "two and two are"]


def test_in_a_chat_the_answer_may_stand_anywhere() -> None:
    said = {"the": "<think>Oslo?</think>The tower is in the city of Rome.", "Where": "<think>Rome?</think>In Oslo."}
    now = answered("chat", **GOOD | said)
    [one] = verified([FACT], now, None, "chat", 20, 10)
    assert one.holds
    assert [one.marked(record) for record in one.case.after.scored("paraphrases")] == [False]
    [other] = verified([FACT], now, None, "completions", 20, 10)
    assert not other.holds


def test_it_is_the_verdict_of_a_build(lm: LanguageModel, tmp_path: Path) -> None:
    edit = low_rank(lm, 0, {1: 2})
    with edit.applied(lm):
        says = [lm.generate(f"the {word} is in the city of", 1).strip() for word in ("tower", "river", "piano", "red")]
    targets = [says[0], "Rome", says[2], "Rome"]  # two hold
    facts = [
        Fact.from_dict(FACT.to_dict() | {"id": word, "subject": f"the {word}", "target_new": target})
        for word, target in zip(("tower", "river", "piano", "red"), targets, strict=True)
    ]
    settings = EvalSettings(max_new_tokens=20, preservation_tokens=10, perplexity_windows=0)
    theirs = verify(lm, edit, facts, settings, RunFolder(tmp_path))
    questions = [question for fact in facts for question in questions_of(fact, "completions", 20, 10)]
    with mock.patch.object(served, "load", return_value=lm):
        asked = Loaded("tiny", "completions")
    before: dict[ServedPrompt, str] = {}
    after: dict[ServedPrompt, str] = {}
    asked.ask(questions, before.__setitem__, "Asking")
    with edit.applied(lm):
        asked.ask(questions, after.__setitem__, "Asking")
    ours = verified(facts, after, before, "completions", 20, 10)
    assert [one.holds for one in ours] == [one.holds for one in theirs]
    assert {one.holds for one in ours} == {True, False}
    for one, other in zip(ours, theirs, strict=True):
        for kind in ("prompt", "paraphrases"):
            pairs = zip(one.case.after.scored(kind), other.case.after.scored(kind), strict=True)
            assert all((a.answer, a.strict) == (b.answer, b.strict) for a, b in pairs)
        # A build bars end tokens; where none comes, what changed is the same.
        assert {changed.prompt for changed in one.changed} == {changed.prompt for changed in other.changed}


def test_a_loaded_model_without_a_chat_template(lm: LanguageModel) -> None:
    with (
        mock.patch.object(served, "load", return_value=lm),
        pytest.raises(ValueError, match="before=tiny: it has no chat template; leave via=chat out"),
    ):
        Loaded("tiny", "chat")
