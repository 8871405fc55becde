"""Low-rank changes of single experts: what is written, what is not, and that it comes back from disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from corrigenda import Edit, Fact, Origin
from corrigenda.edits.experts import ExpertsEdit


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])  # stored as V_e and as its transpose
def test_the_product_lands_in_the_experts_values(family: str, tmp_path: Path) -> None:
    lm = tiny.build(family)
    shape, draw = lm.memory(2, 1).values.shape, torch.Generator().manual_seed(0)
    left, right = torch.randn(shape[0], 2, generator=draw), torch.randn(2, shape[1], generator=draw)
    origin = Origin(lm.name, lm.fingerprint, "toy", facts=(Fact("tower", "the {} is in", "Rome"),))
    ExpertsEdit(origin, {(2, 1): (left, right)}).save(tmp_path / "edit")
    before = [lm.memory(2, expert).values.clone() for expert in range(4)]
    with Edit.load(tmp_path / "edit").applied(lm):
        torch.testing.assert_close(lm.memory(2, 1).values, before[1] + left @ right, atol=1e-6, rtol=1e-6)
        assert all(torch.equal(lm.memory(2, expert).values, before[expert]) for expert in (0, 2, 3))
    assert all(torch.equal(lm.memory(2, expert).values, before[expert]) for expert in range(4))
