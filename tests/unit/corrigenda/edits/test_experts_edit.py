"""Low-rank changes of single experts: what is written, what is not, and that it comes back from disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from edits_parts import drawn, origin

from corrigenda import Edit
from corrigenda.edits.experts import ExpertsEdit


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])  # stored as V_e and as its transpose
def test_the_product_lands_in_the_experts_values(family: str, tmp_path: Path) -> None:
    lm = tiny.build(family)
    d_ffn, d_model = lm.memory(2, 1).values.shape
    left, right = drawn(0, d_ffn, 2), drawn(1, 2, d_model)
    ExpertsEdit(origin(lm), {(2, 1): (left, right)}).save(tmp_path / "edit")
    before = [lm.memory(2, expert).values.clone() for expert in range(4)]
    with Edit.load(tmp_path / "edit").applied(lm):
        torch.testing.assert_close(lm.memory(2, 1).values, before[1] + left @ right, atol=1e-6, rtol=1e-6)
        assert all(torch.equal(lm.memory(2, expert).values, before[expert]) for expert in (0, 2, 3))
    assert all(torch.equal(lm.memory(2, expert).values, before[expert]) for expert in range(4))
