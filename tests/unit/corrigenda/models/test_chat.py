import pytest
import tiny

from corrigenda.models.chat import chat_text, chat_tokens

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


def test_without_a_template_there_is_no_conversation() -> None:
    assert chat_text(tiny.tokenizer(), [("user", "Otto")]) is None
    assert chat_tokens(tiny.tokenizer(), [("user", "Otto")]) is None
