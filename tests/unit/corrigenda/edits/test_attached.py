"""Entries beside the weights: who speaks, where, how much, and for how long; against the formula by hand."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import tiny
import torch
from batch_parts import distance
from by_hooks import changed, coefficients, logits
from edits_parts import origin
from torch import Tensor

from corrigenda import AttachedEdit, LanguageModel, WrongModelError
from corrigenda.edits.attached import Activation, AttachedLayer
from corrigenda.edits.routed import activated
from corrigenda.forward.recording import forward_logits

LAYERS = (1, 2)
SPOKEN = ["the Eiffel tower is in the city of", "the river in Italy is in the north of"]
SILENT = ["Danielle speaks", "Thomas plays the piano"]
PROMPTS = [SPOKEN[0], SILENT[0], SPOKEN[1], SILENT[1]]
PLACES = [2, 3]
"""Where the entries' keys are taken: at "tower" and at "Italy" (without what a tokenizer puts before a text)."""

TOLERANCE = 1e-4


def place(lm: LanguageModel, row: int) -> int:
    """The position of an entry's key in its prompt, behind special tokens."""
    ids = lm.tokens(SPOKEN[row])
    return len(ids) - len(lm.tokenizer(SPOKEN[row], add_special_tokens=False)["input_ids"]) + PLACES[row]


def attached(
    lm: LanguageModel, layers: tuple[int, ...] = (LAYERS[0],), activation: Activation = "step", size: float = 5.0
) -> AttachedEdit:
    """An entry for each of `SPOKEN`, at its key there, which is nearer to nothing else in `PROMPTS`."""
    draw = torch.Generator().manual_seed(1)
    made = []
    for layer in layers:
        memory = lm.memory(layer)
        mean = coefficients(lm, layer, *(lm.tokens(prompt) for prompt in SILENT)).float().mean(0)
        projection = torch.randn(memory.d_ffn, 40, generator=draw)
        keys = torch.stack([coefficients(lm, layer, lm.tokens(p))[place(lm, i)] for i, p in enumerate(SPOKEN)]).float()
        keys = torch.nn.functional.normalize((keys - mean) @ projection, dim=1)
        values = size * torch.randn(2, memory.d_model, generator=draw)
        thresholds = torch.tensor([0.95, 0.94])
        made.append(AttachedLayer(layer, memory.path, mean, projection, keys, values, thresholds, activation))
    return AttachedEdit.of(origin(lm), made)


def by_hand(lm: LanguageModel, edit: AttachedEdit, ids: list[int], n_prompt: int) -> Tensor:
    """Logits (position, vocabulary) of one row: f(q k^T / sqrt(d_k) - t) v in float64, by hooks of our own."""

    def speak(layer: AttachedLayer, m: Tensor, output: Tensor) -> Tensor:
        m, new = m.reshape(len(ids), -1).double(), output.reshape(len(ids), -1).clone()
        d_k = layer.keys.shape[1]
        u = (m - layer.mean.double()) @ layer.projection.double()
        q = d_k**0.25 * u / u.norm(dim=1, keepdim=True)
        k = d_k**0.25 * layer.keys.double()
        excess = q @ k.T / d_k**0.5 - layer.thresholds.double()
        f = (excess > 0).double() if layer.activation == "step" else excess.relu()
        new[:n_prompt] += (f @ layer.values.double())[:n_prompt].to(new)
        return new.view(output.shape)

    with ExitStack() as stack:
        for one in edit.layers:
            stack.enter_context(changed(lm.architecture.values(one.layer), partial(speak, one)))
        return logits(lm, ids)


@pytest.mark.parametrize("activation", ["step", "relu"])
@pytest.mark.parametrize("family", tiny.KINDS)
def test_answers_are_those_of_the_formula(family: str, activation: Activation) -> None:
    """In mixed batches, at two layers; and silent rows are what they were."""
    lm = tiny.build(family)
    edit = attached(lm, LAYERS, activation, size=5.0 if activation == "step" else 100.0)
    batch = lm.batch([lm.tokens(prompt) for prompt in PROMPTS])
    before = forward_logits(lm, batch)
    with edit.applied(lm):
        mixed = forward_logits(lm, batch)
    for row, prompt in enumerate(PROMPTS):
        ids = lm.tokens(prompt)
        expected = by_hand(lm, edit, ids, len(ids))
        assert distance(mixed[row, : len(ids)], expected) < TOLERANCE
        changed = distance(before[row, : len(ids)], mixed[row, : len(ids)]) > 1e-2
        assert changed == (prompt in SPOKEN)
    assert torch.equal(forward_logits(lm, batch), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_entries_and_silent_prompts_are_bit_for_bit_the_base(dtype: torch.dtype) -> None:
    lm = tiny.build("llama")
    lm.model.to(dtype)
    lm = LanguageModel(lm.model, lm.tokenizer, "tiny")
    edit = attached(lm)
    [layer] = edit.layers
    empty = replace(layer, keys=torch.zeros(0, 40), values=torch.zeros(0, 32), thresholds=torch.zeros(0))
    spoken = lm.batch([lm.tokens(prompt) for prompt in SPOKEN])
    silent = [lm.batch([lm.tokens(prompt)]) for prompt in SILENT]  # no padding, which may count in the last bit
    before, before_silent = forward_logits(lm, spoken), [forward_logits(lm, one) for one in silent]
    for none in (AttachedEdit.of(origin(lm), []), AttachedEdit.of(origin(lm), [empty])):
        with none.applied(lm):
            assert torch.equal(forward_logits(lm, spoken), before)
        assert "no entries" in none.describe()
    with edit.applied(lm):
        for one, same in zip(silent, before_silent, strict=True):
            assert torch.equal(forward_logits(lm, one), same)
        after = forward_logits(lm, spoken)
        assert after.dtype == dtype
        assert distance(after.float(), before.float()) > 1e-2
    assert torch.equal(forward_logits(lm, spoken), before)


def test_what_follows_a_prompt_is_not_asked(lm: LanguageModel) -> None:
    """An entry's own prompt as a continuation does not make it speak; in one pass, decoded, and after a cache."""
    edit = attached(lm)
    first, then = lm.tokens(SILENT[1]), lm.tokens(SPOKEN[0])
    plain = forward_logits(lm, lm.batch([first + then]))[0]
    n = len(first)
    with edit.applied(lm):
        assert torch.equal(forward_logits(lm, lm.batch([first + then], [n]))[0], plain)
        cached = lm.model(input_ids=torch.tensor([first]), use_cache=True)
        follow = lm.model(input_ids=torch.tensor([then]), past_key_values=cached.past_key_values)
        assert distance(follow.logits[0], plain[n:]) < TOLERANCE
        # The other way round the answer stays in what the continuation reads.
        whole = then + first
        scored = forward_logits(lm, lm.batch([whole], [len(then)]))[0]
        with lm.edits.suspended():
            expected = by_hand(lm, edit, whole, len(then))
        assert distance(scored, expected) < TOLERANCE
        cached = lm.model(input_ids=torch.tensor([then]), use_cache=True)
        follow = lm.model(input_ids=torch.tensor([first]), past_key_values=cached.past_key_values)
        assert distance(follow.logits[0], expected[len(then) :]) < TOLERANCE


def test_only_the_furthest_above_their_thresholds_speak(lm: LanguageModel) -> None:
    [layer] = attached(lm, size=100.0).layers
    low = layer.thresholds - 0.01
    twins: dict[str, Any] = {"keys": layer.keys.repeat(2, 1), "values": layer.values.repeat(2, 1)}
    twins |= {"thresholds": torch.cat([layer.thresholds, low]), "activation": "relu"}
    batch = lm.batch([lm.tokens(prompt) for prompt in PROMPTS])
    found = {}
    for most in (1, 8):
        with AttachedEdit.of(origin(lm), [replace(layer, **twins, most=most)]).applied(lm):
            found[most] = forward_logits(lm, batch)
    with AttachedEdit.of(origin(lm), [replace(layer, thresholds=low, activation="relu")]).applied(lm):
        alone = forward_logits(lm, batch)
    assert distance(found[1], alone) < TOLERANCE
    assert distance(found[8], alone) > 1e-2


def test_describe() -> None:
    edit = attached(tiny.build("llama"), LAYERS)
    assert "layer 1 has 2 entries, thresholds 0.94 to 0.95; layer 2" in edit.describe()


def test_activated_tells_in_which_rows_an_entry_spoke(lm: LanguageModel) -> None:
    """Each row once, though two layers decide, and also in forwards that nobody told anything."""
    expected = [prompt in SPOKEN for prompt in PROMPTS]
    with attached(lm, LAYERS).applied(lm):
        with activated(lm) as seen:
            lm.generate(PROMPTS, 4)
        assert list(seen.rows) == expected
        with activated(lm) as seen:
            lm.model(input_ids=torch.tensor([lm.tokens(SPOKEN[0])]))
        assert seen.rows == (True,)


def test_entries_of_other_shapes(lm: LanguageModel) -> None:
    [layer] = attached(lm).layers
    for changes, message in (
        ({"thresholds": torch.zeros(3)}, r"layer 1 do not fit one another: .*thresholds \(3,\)"),
        ({"values": torch.nan * layer.values}, "not finite"),
        ({"index": "fais"}, r"index='fais'.*did you mean faiss"),
        ({"activation": "gelu"}, "activation='gelu' must be one of step, relu"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(layer, **changes)  # type: ignore[arg-type]
    with pytest.raises(WrongModelError, match="values have 7 numbers"):
        AttachedEdit.of(origin(lm), [replace(layer, values=layer.values[:, :7])]).apply(lm)
    with pytest.raises(ValueError, match="names a layer twice"):
        AttachedEdit.of(origin(lm), [layer, layer])
