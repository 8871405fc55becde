"""Editors refuse the models that they cannot edit before anything is computed."""

from __future__ import annotations

import pytest
import tiny

from corrigenda import Fact
from corrigenda.errors import UnsupportedModelError
from editing import AlphaEdit, CrispEdit, Emmet, FineTune, Grace, Memit, Rome, Shift, UltraEdit, Wise
from editing.editor import Editor

FACT = Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris")
OF_WEIGHTS: list[Editor] = [Rome(), Memit(), AlphaEdit(), Emmet(), UltraEdit(), FineTune(), CrispEdit()]
EDITORS = [*OF_WEIGHTS, Shift(), Grace(), Wise()]


@pytest.mark.parametrize("editor", EDITORS, ids=lambda editor: editor.name)
def test_a_masked_model_is_refused(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    """They learn what a causal model says after a prompt."""
    lm = tiny.build("bert")
    monkeypatch.setattr(lm.model, "forward", None)
    with pytest.raises(UnsupportedModelError, match="is a masked one; take the neurons' editors, or a causal model"):
        editor.edit(lm, [FACT])


@pytest.mark.parametrize("editor", OF_WEIGHTS, ids=lambda editor: editor.name)
def test_quantised_weights_are_refused(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.quantised()
    monkeypatch.setattr(lm.model, "forward", None)
    with pytest.raises(UnsupportedModelError, match="quantised"):
        editor.edit(lm, [FACT])
    if hasattr(editor, "prepare"):
        with pytest.raises(UnsupportedModelError, match="quantised"):
            editor.prepare(lm)
