"""WISE: the pieces by hand, and on tiny models what an edit promises."""

from __future__ import annotations

import pytest

from corrigenda import Fact, LanguageModel
from corrigenda.moments.text import Text
from editing import Unrelated, Wise


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One folder for what is kept on disk, apart from the user's."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.slow
def test_real_model(smollm2: LanguageModel) -> None:
    """Two facts learned one after the other, said and ended; other questions answered as before."""
    facts = [
        Fact("The Eiffel Tower", "{} is located in the city of", "Rome", "Paris"),
        Fact("Ivan Droppa", "What team does {} play for?", "SK Sigma Olomouc", "HC Kosice"),
    ]
    others = ["what is the largest lake in the world?", "The capital of France is", "Water boils at"]
    before = smollm2.generate(others, max_new_tokens=8)
    editor = Wise(
        unrelated=Unrelated(Text(tokens=24 * 16, length=24)),
        text=Text(tokens=1024, length=32),
        prefix_lengths=((5, 4),),
        steps=20,
    )
    edit = editor.extend(smollm2, editor.edit(smollm2, facts[:1]), facts[1:])
    with edit.applied(smollm2):
        said = smollm2.generate([fact.statement for fact in facts], max_new_tokens=12)
        assert [text.strip() for text in said] == ["Rome", "SK Sigma Olomouc"]
        assert smollm2.generate(others, max_new_tokens=8) == before
