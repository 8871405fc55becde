"""`CounterfactualEdit`: in whose scope a prompt is, and which rows are read with its change."""

import dataclasses
import math

import pytest
import tiny
import torch
from edits_parts import PROMPT, counterfactual, drawn, origin
from malformed_parts import refused

from corrigenda import CounterfactualEdit, EditRefusedError, LanguageModel, LowRankEdit
from corrigenda.edits.routed import activated
from corrigenda.errors import WrongModelError
from corrigenda.forward.recording import forward_logits

OTHERS = ["one two three", "the river is", "Thomas plays the guitar in the city"]


def made(lm: LanguageModel) -> CounterfactualEdit:
    edit = counterfactual(lm, 1)
    assert isinstance(edit, CounterfactualEdit)
    return edit


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rows_behind_a_statement_have_the_change_and_others_are_the_models_own(family: str) -> None:
    """Bit for bit; and a row behind one is what V + A B in place of V says, prompt and answer alike."""
    lm = tiny.build(family)
    edit = made(lm)
    factors = {layer: (edit.left[n], edit.right[n]) for n, layer in enumerate(edit.layers)}
    behind = [f"{edit.texts[0]}{PROMPT}", f"Thomas speaks . {edit.texts[1]}{OTHERS[0]}"]
    batch = lm.batch([lm.tokens(prompt) for prompt in (*behind, *OTHERS)])
    plain = forward_logits(lm, batch)
    with edit.applied(lm), activated(lm) as seen:
        found = forward_logits(lm, batch)
    assert seen.rows == (True, True, False, False, False)
    with LowRankEdit.of(lm, origin(lm), factors).applied(lm):
        changed = forward_logits(lm, batch)
    for row, length in enumerate(batch.lengths.tolist()):
        at = slice(batch.input_ids.shape[1] - length, None) if not bool(batch.attention_mask[row, 0]) else slice(length)
        if row < len(behind):
            torch.testing.assert_close(found[row, at], changed[row, at], atol=1e-4, rtol=1e-4)
            assert not torch.allclose(found[row, at], plain[row, at], atol=1e-2)
        else:
            assert torch.equal(found[row, at], plain[row, at])


def test_what_is_generated_goes_on_as_the_prompt_began(lm: LanguageModel) -> None:
    edit = made(lm)
    factors = {layer: (edit.left[n], edit.right[n]) for n, layer in enumerate(edit.layers)}
    plain = lm.generate(PROMPT, max_new_tokens=5)
    with LowRankEdit.of(lm, origin(lm), factors).applied(lm):
        expected = lm.generate(edit.texts[0] + PROMPT, max_new_tokens=5)
    with edit.applied(lm), activated(lm) as seen:
        assert lm.generate(PROMPT, max_new_tokens=5) == expected
    assert seen.rows == (True,)  # that the prompt's states were looked at first is no row of its own
    nowhere = dataclasses.replace(edit, threshold=1.0)
    with nowhere.applied(lm):
        assert lm.reads(PROMPT) == PROMPT
        assert lm.generate(PROMPT, max_new_tokens=5) == plain


def test_the_scope_by_hand(lm: LanguageModel) -> None:
    """s = exp(-|z S - z_j S|^2) summed number by number; the largest has to be above the threshold."""
    keys = torch.nn.functional.normalize(drawn(4, 2, 6), dim=1)
    edit = dataclasses.replace(made(lm), scope=drawn(3, 6, 4), keys=keys)
    for prompt in (PROMPT, *OTHERS):
        z = edit.gate.of_prompts(lm, lm.batch([lm.tokens(prompt)]))[0].tolist()
        shares = []
        for key in edit.keys.tolist():
            mapped = [sum((z[i] - key[i]) * float(edit.scope[i, j]) for i in range(6)) for j in range(4)]
            shares.append(math.exp(-sum(one**2 for one in mapped)))
        best = shares.index(max(shares))
        for threshold, near in ((0.999 * shares[best], [best]), (1.001 * shares[best], [])):
            cut = dataclasses.replace(edit, threshold=threshold)
            assert cut.near(lm, prompt) == near
            assert cut.before(lm, prompt) == (edit.texts[best] if near else "")


def test_what_does_not_fit(lm: LanguageModel) -> None:
    edit = made(lm)
    for wrong in ({"scope": torch.zeros(5, 3)}, {"layers": (1,)}, {"right": edit.right[:, :1]}, {"threshold": -0.5}):
        refused(ValueError, "do not fit one another, or a negative threshold", dataclasses.replace, edit, **wrong)
    refused(EditRefusedError, "'left' are NaN", dataclasses.replace, edit, left=edit.left * torch.nan)
    other = dataclasses.replace(edit, right=drawn(0, 2, 2, 7))
    refused(WrongModelError, "layer 1: the counterfactual edit.s values have 7 numbers", other.apply, lm)
    with edit.applied(lm), pytest.raises(ValueError, match="words in the prompt; call the model with input_ids"):
        lm.model(inputs_embeds=torch.zeros(1, 3, tiny.WIDTH))
