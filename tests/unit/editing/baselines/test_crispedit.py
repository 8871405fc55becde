import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from editors_parts import bits, same_bits
from rome_parts import build

from corrigenda import Fact, LanguageModel
from corrigenda.errors import SettingsError
from corrigenda.moments import curvature as curvatures
from corrigenda.moments.curvature import curvature
from corrigenda.moments.text import Text
from editing import CrispEdit, EditRefusedError, FineTune

FACTS = [
    Fact("Big Ben", "{} stands in", "the city of Rome", "London", id="ben"),
    Fact("Thomas", "the mother tongue of {} is", "French", "English", id="thomas"),
    Fact("river", "the {} in the north is", "green", "blue", id="river"),
]
TEXT = Text(tokens=480, length=12)
CRISP = CrispEdit(layer=1, gamma=0.5, lr=0.01, epochs=5, stop=1e-9, text=TEXT, batch_size=2)


lm = pytest.fixture(tiny.steep)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_whole_change_has_no_part_of_high_curvature(family: str) -> None:
    """By the eigenvectors of the factors: the change in the barred pairs is rounding, in the others it is not."""
    lm = build(family)
    before = bits(lm)
    edit = CRISP.edit(lm, FACTS)
    assert same_bits(lm, before)
    factors = curvature(lm, 1, TEXT.at_least(8 * lm.memory(1).d_ffn))
    left, right = (torch.linalg.eigh(one.matrix) for one in (factors.coefficients, factors.gradients))
    inside = left[1].T @ edit.delta(1).double() @ right[1]
    sizes = left[0].clamp(min=0)[:, None] * right[0].clamp(min=0)
    order = sizes.flatten().argsort(descending=True)
    held = sizes.flatten()[order].cumsum(0) / sizes.sum()
    barred = order[: int((held < 0.5).sum()) + 1]
    assert 0 < len(barred) < len(order) // 2
    high = inside.flatten()[barred]
    assert float(high.abs().max()) < 1e-5 * float(inside.norm())
    plain = left[1].T @ FineTune(**_shared()).edit(lm, FACTS).delta(1).double() @ right[1]
    assert float(plain.flatten()[barred].norm()) > 0.05 * float(plain.norm())


def _shared() -> dict[str, Any]:
    return {field.name: getattr(CRISP, field.name) for field in dataclasses.fields(FineTune)}


def test_with_nothing_barred_it_is_fine_tuning(lm: LanguageModel) -> None:
    free = dataclasses.replace(CRISP, gamma=0.0).edit(lm, FACTS)
    plain = FineTune(**_shared()).edit(lm, FACTS)
    assert free.norm(1) > 0.1
    torch.testing.assert_close(free.delta(1), plain.delta(1), rtol=1e-2, atol=2e-3)


def test_the_factors_are_taken_once(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    CRISP.prepare(lm)
    paths = list(cache.glob("moments/*gradients*-sampled.safetensors"))
    changed = [path.stat().st_mtime_ns for path in paths]
    assert changed
    monkeypatch.setattr(curvatures, "_compute", None)
    CRISP.edit(build("llama"), FACTS)
    assert [path.stat().st_mtime_ns for path in paths] == changed


def test_bad_settings_say_what_to_do(lm: LanguageModel) -> None:
    with pytest.raises(SettingsError, match=r"bound=0\.1"):
        CrispEdit(bound=0.1)
    with pytest.raises(EditRefusedError, match="bars every direction"):
        dataclasses.replace(CRISP, gamma=1.0, text=Text(tokens=4800, length=12)).edit(lm, FACTS)
