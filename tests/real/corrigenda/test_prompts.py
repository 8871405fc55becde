import pytest
from prompts_parts import pretend_slow

from corrigenda import LanguageModel
from corrigenda.prompts import encode_plain, encode_target, subject_span
from corrigenda.text.joints import joined


@pytest.mark.parametrize("prompt", ["The Eiffel Tower is in", 'He said: "', "Question:\n", "1,", ""])
@pytest.mark.parametrize("target", ["Paris", "St. Louis", "Ærøskøbing", "42", "'s-Hertogenbosch"])
def test_target_of_the_real_model(smollm2: LanguageModel, prompt: str, target: str) -> None:
    tokenizer = smollm2.tokenizer
    ids = encode_target(tokenizer, prompt, target)
    assert tokenizer.decode(encode_plain(tokenizer, prompt) + ids) == joined(prompt, target)
    if prompt[-1:] != '"':  # with which a tokenizer may merge what follows
        assert encode_plain(tokenizer, prompt) + ids == encode_plain(tokenizer, joined(prompt, target))
    assert not set(ids) & set(tokenizer.all_special_ids)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(
    ("prompt", "subject"),
    [
        ("The Eiffel Tower is located in", "The Eiffel Tower"),
        ("The mother tongue of Danielle Darrieux is", "Danielle Darrieux"),
        ('"Ærøskøbing" lies in', "Ærøskøbing"),
        ("Antigone, which Antigone", "Antigone"),
        ("Who is S. A. Corey?", "S. A. Corey"),
        ("In which country lies 東京", "東京"),
    ],
)
def test_subject_span_of_the_real_model(
    smollm2: LanguageModel, prompt: str, subject: str, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slow:
        pretend_slow(monkeypatch, smollm2.tokenizer)
    first, end = subject_span(smollm2.tokenizer, prompt, subject)
    ids = smollm2.tokenizer(prompt)["input_ids"]
    assert smollm2.tokenizer.decode(ids[first:end]).strip() == subject
    assert len(smollm2.tokenizer.decode(ids[:first]).rstrip()) == len(prompt[: prompt.rfind(subject)].rstrip())
