"""MEMIT as an editor, against the updates of its authors' implementation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.data import read_facts
from corrigenda.moments.text import Text
from editing import Memit, ValueSettings
from editing.locate_then_edit.solved import Batch, Solving


@dataclass(frozen=True)
class Given(Text):
    """A text of tokens that are given."""

    given: tuple[tuple[int, ...], ...] = ()

    @property
    def key(self) -> str:
        return "given"

    def sequences(self, lm: LanguageModel) -> list[list[int]]:
        return [list(sequence) for sequence in self.given]


@pytest.fixture(scope="module")
def described(shared: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared / "parity" / "memit_smollm2.json").read_text())
    return found


@pytest.fixture(scope="module")
def reference(shared: Path) -> dict[str, Tensor]:
    return load_file(shared / "parity" / "memit_smollm2.safetensors")


@pytest.fixture(scope="module")
def facts(shared: Path) -> list[Fact]:
    return list(read_facts(str(shared / "data" / "counterfact.json"), limit=4))


@pytest.fixture(scope="module")
def memit(described: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The authors' settings; what is kept on disk is kept apart."""
    given = described["settings"]
    names = ("steps", "lr", "weight_decay", "clamp_norm_factor", "kl_factor", "kl_prompt", "early_stop_loss")
    sequences = tuple(map(tuple, described["second_moment_text"]))
    prefixes = [template.removesuffix("{}") for group in described["context_templates"] for template in group]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRIGENDA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Memit(
            layers=tuple(described["layers"]),
            prefixes=tuple(prefixes),
            value=ValueSettings(**{name: given[name] for name in names}),
            text=Given(tokens=128 * 64, length=64, given=sequences),
            tokens_per_coefficient=0,
            ridge=0.0,
            ratio=None,
            weight=given["mom2_update_weight"],
        )


def cosine(left: Tensor, right: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(left.double().flatten(), right.double().flatten(), dim=0))


def difference(left: Tensor, right: Tensor) -> float:
    return float((left - right).norm() / right.norm())


def updates(reference: Mapping[str, Tensor], layers: Sequence[int]) -> dict[int, Tensor]:
    return {n: reference[f"{n}.keys"].double() @ reference[f"{n}.residual"].double().T for n in layers}


def test_the_editor_makes_the_authors_updates(
    smollm2: LanguageModel,
    memit: Memit,
    described: dict[str, Any],
    reference: dict[str, Tensor],
    facts: list[Fact],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Targets and updates; and from the authors' targets, the same to rounding."""
    targets: list[Tensor] = []
    whole = Solving.targets

    def watched(self: Solving, lm: LanguageModel, batches: Sequence[Batch], layers: Sequence[int]) -> Any:
        found, report = whole(self, lm, batches, layers)
        targets.append(found[layers[-1]])
        return found, report

    monkeypatch.setattr(Solving, "targets", watched)
    edit = memit.edit(smollm2, facts)
    for number in range(len(facts)):
        assert cosine(targets[0][number], reference["z"][number]) >= 0.98
    for layer, expected in updates(reference, described["layers"]).items():
        assert cosine(edit.delta(layer), expected) >= 0.98

    def given(self: Solving, lm: LanguageModel, batches: Sequence[Batch], layers: Sequence[int]) -> Any:
        return {layers[-1]: reference["z"]}, [{} for _ in facts]

    monkeypatch.setattr(Solving, "targets", given)
    edit = memit.edit(smollm2, facts)
    for layer, expected in updates(reference, described["layers"]).items():
        assert cosine(edit.delta(layer), expected) >= 0.9999
        assert difference(edit.delta(layer), expected.float()) < 1e-3
        assert edit.norm(layer) == pytest.approx(described["update_norms"][str(layer)], rel=1e-3)
