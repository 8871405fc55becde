import pytest
import tiny

from corrigenda.models.chat import chat_text, chat_tokens, turn_tokens

# As the templates of Llama 3, SmolLM3, gpt-oss and Granite ask for it.
DATED = {
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ date_string }} . {{ messages[0].content }}": "01 Jan 2025 . Otto",
    '{%- set today = strftime_now("%d %B %Y") -%}{{ today }} . {{ messages[0].content }}': "01 January 2025 . Otto",
    "{{ strftime_now( '%Y-%m-%d' ) }} . {{ messages[0].content }}": "2025-01-01 . Otto",
}


@pytest.mark.parametrize("template", DATED)
def test_a_template_writes_the_same_date_on_every_day(template: str) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    text = chat_text(tokenizer, [("user", "Otto")])
    assert text == DATED[template]
    assert chat_tokens(tokenizer, [("user", "Otto")]) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_the_opening_of_the_answer_is_asked_for() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{% if add_generation_prompt %} ?{% endif %}"
    assert chat_text(tokenizer, [("user", "Otto")]) == "Otto ?"
    assert chat_text(tokenizer, [("user", "Otto")], answer=False) == "Otto"


def test_a_model_that_may_think_answers_at_once() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = (  # as Qwen3's and SmolLM3's ask
        "{{ messages[0].content }}{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
    )
    assert chat_text(tokenizer, [("user", "Otto")]) == "Otto"


def test_without_a_template_there_is_no_conversation() -> None:
    assert chat_text(tiny.tokenizer(), [("user", "Otto")]) is None
    assert chat_tokens(tiny.tokenizer(), [("user", "Otto")]) is None


EACH = "{% for one in messages %}<s>{{ 'red' if one.role == 'user' else 'blue' }} : {{ one.content }}</s>{% endfor %}"


@pytest.mark.parametrize(
    ("template", "opening"),
    [
        (EACH, "<s>red :"),
        ("<s>black : red and blue</s>" + EACH, "</s><s>red :"),  # what the template tells the model comes before it
        ("{% for one in messages %}{{ one.content }}{% endfor %}", ""),
        ("{{ messages[0].content }}", ""),
    ],
)
def test_what_opens_a_turn_of_the_user(template: str, opening: str) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    tokens = turn_tokens(tokenizer)
    assert list(tokens) == tokenizer(opening, add_special_tokens=False)["input_ids"]
    turns = [("user", "Otto"), ("assistant", "river"), ("user", "tower")]
    written = chat_tokens(tokenizer, turns) or []
    ends = [n for n in range(len(written)) if tokens and tuple(written[n - len(tokens) : n]) == tokens]
    assert len(ends) == (2 if opening else 0)
    assert turn_tokens(tiny.tokenizer()) == ()
