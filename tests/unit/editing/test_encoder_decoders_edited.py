import dataclasses

import pytest
import tiny
from editors_parts import bits, editor, same_bits

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.recording import forward_logits
from corrigenda.prompts import encode_target
from editing import FineTune, Grace, Lora, Shift, UltraEdit
from editing.editor import Editor

FACT = Fact(subject="the Eiffel tower", prompt="{} is located in the city of", target_new="Rome", target_true="Paris")


def probability(lm: LanguageModel) -> float:
    """Of the new object."""
    batch = lm.batch([lm.tokens(FACT.statement)])
    [token] = encode_target(lm.tokenizer, FACT.statement, "Rome")
    return float(forward_logits(lm, batch, batch.lengths - 1).softmax(-1)[0, token])


@pytest.mark.parametrize("family", ["bart", "mbart", "t5-gated"])
@pytest.mark.parametrize(
    "chosen", [FineTune(steps=10), Lora(steps=10), Grace(radius=0.5, steps=10), Shift(), UltraEdit()]
)
def test_the_new_object_becomes_likelier(family: str, chosen: Editor, tmp_path: object) -> None:
    lm = tiny.build(family)
    before, plain = bits(lm), probability(lm)
    edit = chosen.edit(lm, [FACT])
    assert same_bits(lm, before)
    with edit.applied(lm):
        edited, said = probability(lm), lm.generate(FACT.statement, 3)
    assert edited > plain
    assert probability(lm) == plain
    assert same_bits(lm, before)
    edit.save(f"{tmp_path}/edit")
    with Edit.load(f"{tmp_path}/edit").applied(lm):
        assert probability(lm) == edited
        assert lm.generate(FACT.statement, 3) == said


@pytest.mark.parametrize("name", ["suppress", "update_neurons", "in_context"])
def test_the_answer_changes(name: str) -> None:
    lm = tiny.build("t5-gated")
    plain = probability(lm)
    with editor(name).edit(lm, [FACT]).applied(lm):
        assert probability(lm) != plain
    assert probability(lm) == plain


@pytest.mark.parametrize(
    "name", ["rome", "memit", "random", "wise_whitened", "crispedit", "grace", "memoir", "t_patcher"]
)
def test_what_needs_the_prompts_tokens_or_a_text_says_so(name: str) -> None:
    lm = tiny.build("t5")
    chosen = dataclasses.replace(editor(name), radius=None) if name == "grace" else editor(name)
    for call in (lambda: chosen.edit(lm, [FACT]), lambda: chosen.prepare(lm)):
        with pytest.raises(UnsupportedModelError, match="finetune, shift") as caught:
            call()
        assert "\n" not in str(caught.value)
