import pytest
from tokenizers.processors import TemplateProcessing

from corrigenda import ContextEdit, Fact, LanguageModel
from corrigenda.edits.origin import Origin
from eval import RealUse
from eval.real_use.questions import EXAMPLES, QuestionInSetting, as_question, questions_of

FACT = Fact("Big Ben", "{} is located in the city of", "Rome", "London", paraphrases=("Where is {}?",))
KINDS = ("prompt", "paraphrases")

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def by_setting(lm: LanguageModel, settings: RealUse, kind: str = "prompt") -> dict[str, QuestionInSetting]:
    return {one.setting: one for one in questions_of(lm, FACT, KINDS, settings) if one.kind == kind}


def test_a_question_stays_and_a_beginning_is_to_be_completed() -> None:
    assert as_question("Where is Big Ben?") == "Where is Big Ben?"
    assert as_question("Wo ist Big Ben? ") == "Wo ist Big Ben? "
    text = as_question("Big Ben is in the city of")
    assert "Big Ben is in the city of" in text
    assert text != "Big Ben is in the city of"


def test_without_a_template_there_is_no_chat(lm: LanguageModel) -> None:
    assert list(by_setting(lm, RealUse())) == ["plain_bare", "plain_context", "plain_told"]
    assert list(questions_of(lm, FACT, KINDS, RealUse(forms=("chat",)))) == []


def test_plain(lm: LanguageModel) -> None:
    found = by_setting(lm, RealUse(), "paraphrases")
    assert found["plain_bare"].prompt == found["plain_bare"].asked == "Where is Big Ben?"
    prompt = found["plain_context"].prompt
    assert prompt.endswith("\n\nQuestion: Where is Big Ben?\nAnswer:")
    for question, answer in EXAMPLES:
        assert f"Question: {question}\nAnswer: {answer}\n\n" in prompt
    assert found["plain_context"].tokens == lm.tokenizer(prompt)["input_ids"]
    assert found["plain_told"].prompt == "Where is Big Ben? Answer in a few words."


def test_chat(lm: LanguageModel) -> None:
    lm.tokenizer.chat_template = TEMPLATE
    found = by_setting(lm, RealUse(), "paraphrases")
    assert list(found) == [f"{form}_{context}" for form in ("plain", "chat") for context in ("bare", "context", "told")]
    assert found["chat_bare"].prompt == "<user>Where is Big Ben?</user><assistant>"
    turns = "".join(f"<user>{asked}</user><assistant>{said}</assistant>" for asked, said in EXAMPLES)
    assert found["chat_context"].prompt == f"{turns}<user>Where is Big Ben?</user><assistant>"
    assert found["chat_told"].prompt == "<user>Where is Big Ben? Answer in a few words.</user><assistant>"
    # A template has the special tokens in it: the tokenizer adds none.
    assert found["chat_bare"].tokens == lm.tokenizer(found["chat_bare"].prompt, add_special_tokens=False)["input_ids"]


def test_a_chat_has_no_special_token_twice(lm: LanguageModel) -> None:
    lm.tokenizer._tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    lm.tokenizer.chat_template = "<s> {% for m in messages %}{{ m.content }}{% endfor %}"
    assert lm.tokenizer("the city")["input_ids"][0] == 1
    assert {name: one.tokens.count(1) for name, one in by_setting(lm, RealUse()).items()} == {
        "plain_bare": 1,
        "plain_context": 1,
        "plain_told": 1,
        "chat_bare": 1,
        "chat_context": 1,
        "chat_told": 1,
    }


def test_what_is_asked_for(lm: LanguageModel) -> None:
    lm.tokenizer.chat_template = TEMPLATE
    assert list(by_setting(lm, RealUse(forms=("chat",), contexts=("context",)))) == ["chat_context"]
    assert {one.kind for one in questions_of(lm, FACT, ("paraphrases",), RealUse())} == {"paraphrases"}


def test_the_text_of_an_edit_is_in_what_the_user_says(lm: LanguageModel) -> None:
    lm.tokenizer.chat_template = TEMPLATE
    before = by_setting(lm, RealUse())
    edit = ContextEdit(Origin(lm.name, lm.fingerprint, "by_hand", {}, (FACT,), {}), "the city is Rome .\n")
    with edit.applied(lm):
        found = by_setting(lm, RealUse())
    assert {name: one.prompt for name, one in found.items()} == {name: one.prompt for name, one in before.items()}

    def read(text: str, name: str) -> list[int]:
        return lm.tokenizer(text, add_special_tokens=not name.startswith("chat"))["input_ids"]

    for name, one in found.items():
        told = "the city is Rome .\n"
        text = one.prompt.replace("<user>", f"<user>{told}", 1) if name.startswith("chat") else told + one.prompt
        assert one.tokens == read(text, name)
        assert one.tokens != before[name].tokens


def test_nothing_is_asked_of_what_is_erased(lm: LanguageModel) -> None:
    fact = Fact("Big Ben", "{} is located in the city of", None, "London")
    assert list(questions_of(lm, fact, KINDS, RealUse())) == []


@pytest.mark.parametrize("name", ["forms", "contexts"])
def test_settings_that_ask_nothing(name: str) -> None:
    with pytest.raises(ValueError, match=rf"RealUse: {name}=\[\] must name at least one"):
        RealUse(**{name: []})
    good = getattr(RealUse(), name)[0]
    with pytest.raises(ValueError, match="and each once"):
        RealUse(**{name: [good, good]})
