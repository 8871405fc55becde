import pytest
import tiny

from corrigenda.data.embedded import shipped_text
from corrigenda.errors import SettingsError
from corrigenda.moments.text import Text
from corrigenda.prompts import encode_plain
from editing.shared.contexts import contexts


def test_whole_sentences_of_the_length_and_then_beginnings() -> None:
    lm = tiny.build_byte_level()
    whole = contexts(lm, ((60, 4),), Text("shipped"))
    assert whole[0] == ""
    assert len({*whole}) == 5
    for one in whole[1:]:
        assert one.endswith(". ")
        assert one.strip() in shipped_text()
        assert len(encode_plain(lm.tokenizer, one.strip())) == 60
    assert contexts(lm, ((60, 4),), Text("shipped")) == whole
    assert contexts(lm, ((60, 4),), Text("shipped"), seed=1) != whole
    assert contexts(lm, ((60, 4), (50, 2)), Text("shipped"))[:5] == whole
    [_, short] = contexts(lm, ((2, 1),), Text("shipped"))  # no sentence is so short
    assert short.endswith(". ")
    assert len(short) <= 8


def test_as_many_as_were_asked_for_or_an_error() -> None:
    """No sentence has 400 letters, and there are not 100,000 of any length."""
    lm = tiny.build_byte_level()
    long = contexts(lm, ((400, 5),), Text("shipped"))[1:]
    assert len({*long}) == 5
    assert all(len(encode_plain(lm.tokenizer, one[:-1])) == 400 for one in long)
    with pytest.raises(SettingsError, match="contexts of 400 tokens, and 100000 were asked for"):
        contexts(lm, ((400, 100_000),), Text("shipped"))


def test_sampled_where_the_text_is_and_where_its_words_are_not_known() -> None:
    lm = tiny.build_byte_level()
    sampled = contexts(lm, ((6, 3),), Text("self"))
    assert len(sampled) == 4
    assert not any(one.strip(". ") in shipped_text() for one in sampled[1:])
    few_words = tiny.build("llama")
    assert contexts(few_words, ((6, 3),), Text("shipped")) == contexts(few_words, ((6, 3),), Text("self"))
