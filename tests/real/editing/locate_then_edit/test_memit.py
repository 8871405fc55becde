"""MEMIT, and the parts of locate-then-edit put together as MEMIT, against the values of its authors' implementation."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rome_parts import cosine
from safetensors.torch import load_file
from torch import Tensor

from corrigenda import Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.data import read_facts
from corrigenda.moments.second_moment import SecondMoment, second_moments
from corrigenda.moments.text import Text
from editing import Memit, ValueSettings
from editing.locate_then_edit.keys import group_weights, mean_keys
from editing.locate_then_edit.least_squares import Penalty, penalised_update
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import Prompts, build_prompts
from editing.locate_then_edit.solved import Batch, Solving
from editing.locate_then_edit.spread import spread
from editing.locate_then_edit.targets import old_values, solve_target_values
from eval.scoring.probabilities import probabilities, score


@dataclass(frozen=True)
class Given(Text):
    """A text of tokens that are given."""

    given: tuple[tuple[int, ...], ...] = ()

    def key(self, lm: LanguageModel) -> str:
        return "given"

    def sequences(self, lm: LanguageModel) -> list[list[int]]:
        return [list(sequence) for sequence in self.given]


@dataclass(frozen=True)
class Reference:
    """The authors' run, and what of it our parts are given."""

    described: dict[str, Any]
    tensors: dict[str, Tensor]
    facts: list[Fact]
    prompts: Prompts
    weights: Tensor
    moments: Mapping[int, SecondMoment]
    settings: ValueSettings
    prefixes: list[str]
    text: Given

    @property
    def layers(self) -> list[int]:
        return list(self.described["layers"])


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept on disk is kept apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRIGENDA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def reference(smollm2: LanguageModel, shared: Path) -> Reference:
    described = json.loads((shared / "parity" / "memit_smollm2.json").read_text())
    facts = list(read_facts(str(shared / "data" / "counterfact.json"), limit=4))
    groups = described["context_templates"]
    prefixes = [template.removesuffix("{}") for group in groups for template in group]
    sequences = tuple(map(tuple, described["second_moment_text"]))
    text = Given(tokens=128 * 64, length=64, given=sequences)
    given = described["settings"]
    names = ("steps", "lr", "weight_decay", "clamp_norm_factor", "kl_factor", "kl_prompt", "early_stop_loss")
    settings = ValueSettings(**{name: given[name] for name in names}, clamp_norm="bare")
    return Reference(
        described,
        load_file(shared / "parity" / "memit_smollm2.safetensors"),
        facts,
        build_prompts(smollm2, facts, prefixes, settings.kl_prompt, settings.kl_position),
        group_weights([len(group) for group in groups]),
        second_moments(smollm2, described["layers"], text),
        settings,
        prefixes,
        text,
    )


def difference(left: Tensor, right: Tensor) -> float:
    """The relative difference of two tensors."""
    return float((left - right).norm() / right.norm())


def edit_of(lm: LanguageModel, factors: Mapping[int, tuple[Tensor, Tensor]]) -> LowRankEdit:
    return LowRankEdit.of(lm, Origin(lm.name, lm.fingerprint, "test"), factors)


def written(lm: LanguageModel, reference: Reference, z: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """MEMIT from its targets on: keys and what is left of the residual are measured anew at each layer."""
    layers = reference.layers
    weight = reference.described["settings"]["mom2_update_weight"]
    factors: dict[int, tuple[Tensor, Tensor]] = {}
    for layer, share in spread(layers):
        with edit_of(lm, factors).applied(lm):
            run = run_prompts(lm, reference.prompts, sorted({layer, layers[-1]}))
        keys = mean_keys(run, layer, reference.weights)
        residuals = (z - old_values(run, layers[-1], "block")) * share
        factors[layer] = penalised_update(keys, residuals, Penalty(reference.moments[layer], weight))
    return factors


@pytest.fixture(scope="module")
def targets(smollm2: LanguageModel, reference: Reference) -> tuple[Tensor, Tensor]:
    """Our targets z, (fact, d_model), and what the block puts out on the bare prompts without an edit."""
    run = run_prompts(smollm2, reference.prompts, [6])
    solved = solve_target_values(smollm2, run, 6, reference.settings, "block")
    return solved.values, old_values(run, 6, "block")


def test_targets_at_the_blocks_output(reference: Reference, targets: tuple[Tensor, Tensor]) -> None:
    (found, old), z = targets, reference.tensors["z"]
    for number in range(len(reference.facts)):
        assert difference(found[number] - old[number], z[number] - old[number]) < 1e-3


def test_keys_and_shares_at_each_layer(smollm2: LanguageModel, reference: Reference) -> None:
    """From the authors' targets: A^-1 K^T and the share of the residual, with the lower layers already changed."""
    factors = written(smollm2, reference, reference.tensors["z"])
    assert list(factors) == reference.layers
    for layer, (left, right) in factors.items():
        assert difference(left, reference.tensors[f"{layer}.keys"]) < 1e-4
        assert difference(right.T, reference.tensors[f"{layer}.residual"]) < 1e-4
        assert float((left @ right).norm()) == pytest.approx(reference.described["update_norms"][str(layer)], rel=1e-5)


def test_the_whole_way(smollm2: LanguageModel, reference: Reference, targets: tuple[Tensor, Tensor]) -> None:
    """From our own targets: the authors' updates, and what they observed of the edited model."""
    edit = edit_of(smollm2, written(smollm2, reference, targets[0]))
    for layer in reference.layers:
        expected = reference.tensors[f"{layer}.keys"] @ reference.tensors[f"{layer}.residual"].T
        assert difference(edit.delta(layer), expected) < 1e-2
    observed = reference.described["observed"]["P(new) > P(true) on [prompt, paraphrase] before"]
    assert preferred(smollm2, reference.facts) == observed
    with edit.applied(smollm2):
        assert preferred(smollm2, reference.facts) == reference.described["observed"]["after"]


def preferred(lm: LanguageModel, facts: list[Fact]) -> list[list[bool]]:
    """For each fact whether the new object is more likely than the true one: after its prompt, and a paraphrase."""
    found = []
    for fact in facts:
        targets = [str(fact.target_new), str(fact.target_true)]
        asked = [(prompt, targets) for prompt in (fact.statement, fact.paraphrases[0])]
        scored = [probabilities(*one.targets) for one in score(lm, asked)]
        found.append([new > true for new, true in scored])
    return found


def test_the_editor_makes_the_authors_updates(
    smollm2: LanguageModel, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets of two facts; and from the authors' targets of all, the updates to rounding."""
    memit = Memit(
        layers=tuple(reference.layers),
        prefixes=tuple(reference.prefixes),
        value=replace(reference.settings, clamp_norm="median"),
        text=reference.text,
        tokens_per_coefficient=0,
        ridge=0.0,
        ratio=None,
        weight=reference.described["settings"]["mom2_update_weight"],
    )
    tensors, targets, whole = reference.tensors, list[Tensor](), Solving.targets
    updates = {n: tensors[f"{n}.keys"].double() @ tensors[f"{n}.residual"].double().T for n in reference.layers}

    def watched(self: Solving, lm: LanguageModel, batches: Sequence[Batch], layers: Sequence[int]) -> Any:
        found, report = whole(self, lm, batches, layers)
        targets.append(found[layers[-1]])
        return found, report

    monkeypatch.setattr(Solving, "targets", watched)
    memit.edit(smollm2, reference.facts[:2])
    for number in range(2):
        assert cosine(targets[0][number].double(), tensors["z"][number].double()) >= 0.98

    def given(self: Solving, lm: LanguageModel, batches: Sequence[Batch], layers: Sequence[int]) -> Any:
        return {layers[-1]: tensors["z"]}, [{} for _ in reference.facts]

    monkeypatch.setattr(Solving, "targets", given)
    edit = memit.edit(smollm2, reference.facts)
    for layer, expected in updates.items():
        assert cosine(edit.delta(layer).double(), expected) >= 0.9999
        assert difference(edit.delta(layer), expected.float()) < 1e-3
        assert edit.norm(layer) == pytest.approx(reference.described["update_norms"][str(layer)], rel=1e-3)
