"""A masked memory: whose mask a prompt meets, what is added, and that nothing else is touched; by hand in float64."""

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from by_hooks import changed, coefficients, logits
from edits_parts import drawn, origin
from side_memory_parts import LAYER, PROMPTS
from torch import Tensor

from corrigenda import EditRefusedError, LanguageModel, MaskedMemoryEdit, WrongModelError
from corrigenda.edits.routed import activated
from corrigenda.forward.recording import forward_logits

ACTIVE = 12


def mask(lm: LanguageModel, ids: list[int], background: Tensor, permutation: Tensor) -> set[int]:
    """The formula: of the mean without the first token, less the background, the largest magnitudes, permuted."""
    mean = coefficients(lm, LAYER, ids)[1:].double().mean(0) - background.double()
    order = sorted(range(len(mean)), key=lambda i: -abs(float(mean[i])))
    return {int(permutation[i]) for i in order[:ACTIVE]}


def made(lm: LanguageModel, **changes: Any) -> MaskedMemoryEdit:
    """Entries of the first and the third prompt, spoken where every index is met."""
    memory = lm.memory(LAYER)
    background = torch.stack([coefficients(lm, LAYER, lm.tokens(prompt))[1:].mean(0) for prompt in PROMPTS]).mean(0)
    permutation = torch.randperm(memory.d_ffn, generator=torch.Generator().manual_seed(5))
    masks = torch.zeros(2, memory.d_ffn, dtype=torch.bool)
    for entry, prompt in enumerate((PROMPTS[0], PROMPTS[2])):
        masks[entry, sorted(mask(lm, lm.tokens(prompt), background, permutation))] = True
    delta = 20 * float(memory.values.norm()) * torch.nn.functional.normalize(drawn(6, *memory.values.shape), dim=1)
    parts = {"delta": delta, "masks": masks, "background": background, "permutation": permutation, "threshold": 1.0}
    return MaskedMemoryEdit(origin(lm), LAYER, memory.path, **(parts | changes))


def by_hand(lm: LanguageModel, edit: MaskedMemoryEdit, ids: list[int], entry: int | None) -> Tensor:
    """Logits of one row, with (m * M) W added to the FFN's output at all tokens but the first."""
    change = torch.zeros(len(ids), lm.memory(LAYER).d_model)
    if entry is not None:
        own = edit.masks[entry].double()
        change[1:] = ((coefficients(lm, LAYER, ids)[1:].double() * own) @ edit.delta.double()).float()
    with changed(lm.architecture.values(LAYER), lambda _, output: output + change.view_as(output)):
        return logits(lm, ids)


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_who_speaks_and_what_is_added(family: str) -> None:
    """Each row of a mixed batch by itself; what meets no mask is the model's own, to the bit."""
    lm = tiny.build(family)
    edit = made(lm)
    batch = lm.batch([lm.tokens(prompt) for prompt in PROMPTS])
    before = forward_logits(lm, batch)
    with edit.applied(lm), activated(lm) as seen:
        after = forward_logits(lm, batch)
    assert seen.rows == (True, False, True, False)
    for row, (prompt, entry) in enumerate(zip(PROMPTS, (0, None, 1, None), strict=True)):
        ids = lm.tokens(prompt)
        own, now = before[row, : len(ids)], after[row, : len(ids)]
        if entry is None:
            assert torch.equal(own, now)
            continue
        expected = by_hand(lm, edit, ids, entry)
        torch.testing.assert_close(now.log_softmax(-1), expected.log_softmax(-1), rtol=0, atol=1e-4)
        assert float((own - now).abs().max()) > 1e-2


def test_what_follows_a_prompt_keeps_its_entry(lm: LanguageModel) -> None:
    """The masks are asked at the prompt; the answer's tokens are answered for as the prompt's."""
    edit, ids = made(lm), lm.tokens(PROMPTS[0])
    longer = [*ids, *lm.tokens("Rome is")[-2:]]
    with edit.applied(lm):
        taught = forward_logits(lm, lm.batch([longer], [len(ids)]))[0]
    torch.testing.assert_close(taught, by_hand(lm, edit, longer, 0), rtol=1e-4, atol=1e-4)


def test_how_much_of_a_mask_has_to_be_met(lm: LanguageModel) -> None:
    """An entry that shares some indices with a prompt's mask: it speaks up to that share, and not above."""
    edit, ids = made(lm), lm.tokens(PROMPTS[3])
    own = mask(lm, ids, edit.background, edit.permutation)
    shared = max(len(own & set(row.nonzero()[:, 0].tolist())) for row in edit.masks)
    assert 0 < shared < ACTIVE
    for threshold, speaks in ((shared / ACTIVE, True), ((shared + 0.5) / ACTIVE, False)):
        with replace(edit, threshold=threshold).applied(lm), activated(lm) as seen:
            forward_logits(lm, lm.batch([ids]))
        assert seen.rows == (speaks,)


def test_a_prompt_of_one_token_has_no_mask(lm: LanguageModel) -> None:
    with replace(made(lm), threshold=1e-6).applied(lm), activated(lm) as seen:
        forward_logits(lm, lm.batch([lm.tokens("Thomas")[:1]]))
    assert seen.rows == (False,)


def test_what_is_refused(lm: LanguageModel) -> None:
    edit = made(lm)
    for changes, said in (
        ({"background": torch.zeros(3)}, "do not fit one another: delta"),
        ({"permutation": torch.zeros(len(edit.permutation), dtype=torch.long)}, "do not fit one another"),
        ({"masks": edit.masks & (torch.arange(len(edit.background)) > 20)}, "must be of one size above 0"),
        ({"masks": torch.zeros_like(edit.masks)}, r"of one size above 0, not of \[0\]"),
        ({"threshold": 0.0}, "threshold=0.0 must be a share above 0"),
    ):
        with pytest.raises(ValueError, match=said):
            replace(edit, **changes)
    with pytest.raises(EditRefusedError, match="numbers of 'delta' are NaN"):
        replace(edit, delta=edit.delta * torch.nan)
    with pytest.raises(WrongModelError, match=r"values have 5 numbers, tiny-llama's 32"):
        replace(edit, delta=edit.delta[:, :5]).apply(lm)
