"""Which editors work in models in which an encoder reads the prompt, and which say that they do not."""

from __future__ import annotations

import pytest
import tiny
import torch

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.recording import forward_logits
from corrigenda.prompts import encode_target
from editing import (
    CrispEdit,
    FineTune,
    Grace,
    InContext,
    Memit,
    RandomUpdate,
    Rome,
    Shift,
    Suppress,
    UltraEdit,
    UpdateNeurons,
    Wise,
)
from editing.editor import Editor

FACT = Fact(subject="the Eiffel tower", prompt="{} is located in the city of", target_new="Rome", target_true="Paris")
NEURONS = ((1, 3), (2, 5))
families = pytest.mark.parametrize("family", ["bart", "mbart", "t5-gated"])


def probability(lm: LanguageModel) -> float:
    """Of the new object."""
    batch = lm.batch([lm.tokens(FACT.statement)])
    [token] = encode_target(lm.tokenizer, FACT.statement, "Rome")
    return float(forward_logits(lm, batch, batch.lengths - 1).softmax(-1)[0, token])


@families
@pytest.mark.parametrize("editor", [FineTune(steps=10), Grace(radius=0.5, steps=10), Shift(), UltraEdit()])
def test_the_new_object_becomes_likelier(family: str, editor: Editor, tmp_path: object) -> None:
    """And the model is bit for bit what it was after `edit` and after `revert`; the edit is the same when loaded."""
    lm = tiny.build(family)
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    plain = probability(lm)
    edit = editor.edit(lm, [FACT])
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.model.state_dict().items())
    with edit.applied(lm):
        edited, said = probability(lm), lm.generate(FACT.statement, 3)
    assert edited > plain
    assert probability(lm) == plain
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.model.state_dict().items())
    edit.save(f"{tmp_path}/edit")
    with Edit.load(f"{tmp_path}/edit").applied(lm):
        assert probability(lm) == edited
        assert lm.generate(FACT.statement, 3) == said


@pytest.mark.parametrize("editor", [Suppress(neurons=NEURONS), UpdateNeurons(neurons=NEURONS), InContext()])
def test_the_answer_changes(editor: Editor) -> None:
    lm = tiny.build("t5-gated")
    plain = probability(lm)
    with editor.edit(lm, [FACT]).applied(lm):
        assert probability(lm) != plain
    assert probability(lm) == plain


@pytest.mark.parametrize(
    "editor", [Rome(), Memit(), RandomUpdate(), Wise(), CrispEdit(), Grace()], ids=lambda editor: editor.name
)
def test_what_needs_the_prompts_tokens_or_a_text_says_so(editor: Editor) -> None:
    """In one line that names what works instead, from `edit` and from `prepare`."""
    lm = tiny.build("t5")
    for call in (lambda: editor.edit(lm, [FACT]), lambda: editor.prepare(lm)):  # type: ignore[attr-defined]
        with pytest.raises(UnsupportedModelError, match="finetune, shift") as caught:
            call()
        assert "\n" not in str(caught.value)
