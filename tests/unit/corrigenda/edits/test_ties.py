"""Several low-rank edits made one by TIES: what PEFT makes of their adapters, and what is refused."""

import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import ContextEdit, Edit, Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.edits.ties import merged_factors
from corrigenda.errors import WrongModelError

FACTS = [Fact("Thomas", "the mother tongue of {} is", "French"), Fact("Big Ben", "{} stands in", "Rome")]


def edits(lm: LanguageModel, ranks: tuple[int, int] = (3, 3)) -> tuple[LowRankEdit, LowRankEdit]:
    """Two of random factors, of layers 1 and 2, and of layer 2 alone."""
    draw = torch.Generator().manual_seed(3)
    found = []
    for fact, rank, layers in zip(FACTS, ranks, ((1, 2), (2,)), strict=True):
        shapes = {layer: lm.memory(layer).values.shape for layer in layers}
        factors = {
            layer: (torch.randn(n, rank, generator=draw), torch.randn(rank, d, generator=draw))
            for layer, (n, d) in shapes.items()
        }
        report = ({"loss": 0.1, "disturbance": {}},)
        found.append(LowRankEdit.of(lm, Origin(lm.name, lm.fingerprint, "lora", {}, (fact,), report), factors))
    return found[0], found[1]


def by_peft(lm: LanguageModel, folder: Path, parts: tuple[LowRankEdit, ...], **how: Any) -> dict[int, Tensor]:
    """The change of V of each layer in PEFT's merge of the exported adapters."""
    for name, edit in zip("ab", parts, strict=True):
        edit.to_peft(folder / name)
    paths = {layer: lm.memory(layer).path for layer in (1, 2)}
    transposed = lm.memory(1).transposed
    adapted: Any = peft.PeftModel.from_pretrained(lm.model, str(folder / "a"), adapter_name="a")
    adapted.load_adapter(str(folder / "b"), adapter_name="b")
    adapted.add_weighted_adapter(["a", "b"], adapter_name="both", **how)
    modules = {layer: adapted.base_model.model.get_submodule(path) for layer, path in paths.items()}
    deltas = {layer: module.get_delta_weight("both").detach() for layer, module in modules.items()}
    return {layer: delta if transposed else delta.T for layer, delta in deltas.items()}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(("how", "ranks"), [("ties", (3, 3)), ("ties_svd", (3, 3)), ("ties_svd", (2, 4))])
def test_it_is_what_peft_merges(family: str, how: Any, ranks: tuple[int, int], tmp_path: Path) -> None:
    parts = edits(tiny.build(family), ranks)
    edit = LowRankEdit.merged(parts, density=0.4, weights=[1.5, -0.5], how=how)
    asked = {"weights": [1.5, -0.5], "combination_type": how, "density": 0.4}
    expected = by_peft(tiny.build(family), tmp_path, parts, **asked)
    for layer, delta in expected.items():
        torch.testing.assert_close(edit.delta(layer), delta, rtol=1e-4, atol=1e-4)
        assert edit.factors[layer][0].shape[1] == max(ranks)


def test_by_hand() -> None:
    """The largest half of each stays; (0, 1) has the sign of -5 + 1, and the mean of those with that sign."""
    first, second = torch.tensor([[4.0, 1.0], [0.5, 3.0]]), torch.tensor([[2.0, -5.0], [0.1, 0.2]])
    expected = torch.tensor([[3.0, -5.0], [0.0, 3.0]])
    whole = torch.eye(2)
    left, right = merged_factors([(first, whole), (second, whole)], [1, 1], 0.5, "ties_svd", 2)
    torch.testing.assert_close(left @ right, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left, right = merged_factors([(first, whole), (second, whole)], [1, 1], 1, "ties_svd", 1)
    kept = torch.tensor([[3.0, -5.0], [0.3, 1.6]])
    u, s, v = torch.linalg.svd(kept)
    torch.testing.assert_close(left @ right, s[0] * u[:, :1] @ v[:1])


def test_it_says_what_it_is_of_and_what_its_parts_reported_of_themselves_is_gone(
    lm: LanguageModel, tmp_path: Path
) -> None:
    edit = LowRankEdit.merged(edits(lm))
    edit.save(tmp_path)
    for origin in (edit.origin, Edit.load(tmp_path).origin):
        assert (origin.editor, origin.facts, origin.report) == ("ties", tuple(FACTS), ({}, {}))
        assert origin.settings["of"] == ["lora", "lora"]
    with edit.applied(lm):  # it fits the model
        pass


def test_what_cannot_be_merged(lm: LanguageModel) -> None:
    first, second = edits(lm)
    other, context = edits(tiny.build("llama", seed=1))[1], ContextEdit(first.origin, "It is so.")
    refused: list[tuple[type[Exception], str, list[Edit], dict[str, Any]]] = [
        (TypeError, "a context edit cannot be merged by TIES", [first, context], {}),
        (WrongModelError, "make both on the same weights", [first, other], {}),
        (ValueError, "nothing to merge", [first], {}),
        (ValueError, "1 weights for 2 edits", [first, second], {"weights": [1]}),
        (ValueError, r"density=0 must lie in \(0, 1\]", [first, second], {"density": 0}),
        (ValueError, r"these have \[2, 3\]: take how=ties_svd", [*edits(lm, (2, 3))], {"how": "ties"}),
        (ValueError, "how", [first, second], {"how": "tiessvd"}),
    ]
    for error, said, parts, asked in refused:
        with pytest.raises(error, match=said):
            LowRankEdit.merged(parts, **asked)
