"""ROME: against the authors' values, against plain whole forwards, and its guards."""

import json
from pathlib import Path

import pytest
import torch
from rome_parts import Patch, cosine, given_moment, solve
from safetensors.torch import load_file
from torch import Tensor

import editing.locate_then_edit.prompts
import editing.locate_then_edit.rome
from corrigenda import Fact, LanguageModel
from corrigenda.data import read_facts
from editing import Rome, ValueSettings
from eval import EvalSettings
from eval.scoring.held_out import read_held_out
from eval.scoring.probabilities import probabilities, score

moment = pytest.fixture(given_moment)


@pytest.fixture(scope="module")
def reference(shared: Path) -> dict[str, Tensor]:
    return load_file(shared / "parity" / "rome_smollm2_layer6.safetensors")


@pytest.fixture(scope="module")
def authors(shared: Path) -> Rome:
    """ROME with the contexts and the key of the authors' run, and the bound of their code."""
    described = json.loads((shared / "parity" / "rome_smollm2_layer6.json").read_text())
    contexts = tuple(template.removesuffix("{}") for template in described["context_templates"])
    bare = ValueSettings(clamp_norm="bare")
    return Rome(layer=6, prefixes=contexts, homogeneous_keys=False, value=bare)


@pytest.fixture(scope="module")
def real_facts(shared: Path) -> list[Fact]:
    return list(read_facts(str(shared / "data" / "counterfact.json"), limit=4))


@pytest.mark.slow
def test_parity(smollm2: LanguageModel, authors: Rome, reference: dict[str, Tensor], real_facts: list[Fact]) -> None:
    """The updates of two facts, formed by hand from our k* and v* of both solved side by side."""
    rewrites, values = solve(smollm2, real_facts[:2], authors)
    inverse = torch.linalg.inv(reference["second_moment"].double() + 1e-6 * torch.eye(1536, dtype=torch.float64))
    for number in range(2):
        direction = rewrites.mean_keys[number].double() @ inverse
        direction = (direction / direction.norm()).float()
        residual = values.values[number] - smollm2.memory(6).read(rewrites.bare_keys[number])
        right = residual / (direction @ rewrites.bare_keys[number])
        expected = torch.outer(reference[f"{number}.left"], reference[f"{number}.right"])
        assert cosine(direction, reference[f"{number}.left"]) >= 0.9999
        # Seen: 1e-11 below 1, norms equal to 1e-6. Twenty steps of Adam in float32 enlarge what other kernels round.
        assert cosine(torch.outer(direction, right), expected) >= 0.9999
        assert float(right.norm() / reference[f"{number}.right"].norm()) == pytest.approx(1, abs=1e-3)


def test_parity_of_the_edit(
    smollm2: LanguageModel, authors: Rome, reference: dict[str, Tensor], real_facts: list[Fact], moment: Patch
) -> None:
    moment(reference["second_moment"].double())
    fact = real_facts[3]
    edit = authors.edit(smollm2, [fact])
    expected = torch.outer(reference["3.left"], reference["3.right"])
    assert list(edit.factors) == [6]
    assert cosine(edit.delta(6), expected) >= 0.9999
    assert cosine(edit.factors[6][0], reference["3.left"]) >= 0.9999
    assert edit.norm(6) == pytest.approx(float(expected.norm()), rel=1e-3)
    before = smollm2.memory(6).weight.clone()
    with edit.applied(smollm2):
        change = smollm2.memory(6).weight - before  # (d_model, d_ffn)
        torch.testing.assert_close(change, edit.delta(6).T, atol=1e-5, rtol=1e-3)
        new, true = score(smollm2, [(fact.statement, [str(fact.target_new), str(fact.target_true)])])[0].targets
        assert probabilities(new, true)[0] > 0.9
    assert torch.equal(smollm2.memory(6).weight, before)


GOOGLE = Fact("Google", "{} was founded in the country of", "France", "the United States")


CONTEXTS = ("", "It is well known. ", "In the other room there was a table. ", "This is true: ")


def log_perplexity(lm: LanguageModel) -> float:
    found = read_held_out(lm, EvalSettings(perplexity_windows=3, perplexity_window=50))
    assert found is not None
    return found.log_perplexity


@pytest.mark.parametrize("homogeneous_keys", [True, False])
def test_subject_at_the_very_first_token(
    homogeneous_keys: bool, smollm2: LanguageModel, reference: dict[str, Tensor], moment: Patch
) -> None:
    moment(reference["second_moment"].double())
    assert len(smollm2.tokenizer(GOOGLE.subject)["input_ids"]) == 1
    rome = Rome(layer=6, prefixes=CONTEXTS, homogeneous_keys=homogeneous_keys)
    before = log_perplexity(smollm2)
    with pytest.warns(UserWarning, match="very first token"):
        edit = rome.edit(smollm2, [GOOGLE])
    assert edit.origin.report[0]["subject_at_start"] is True
    assert edit.origin.report[0]["agreement"] > 0.9
    with edit.applied(smollm2):
        asked = [(f"{prefix}{GOOGLE.statement}", ["France", "the United States"]) for prefix in ("Well, ", "Yes. ")]
        for found in score(smollm2, asked):
            new, true = probabilities(*found.targets)
            assert new > 0.5 > true
        assert abs(log_perplexity(smollm2) - before) < 0.2


def test_the_first_tokens_own_key_wrecks_the_model(
    smollm2: LanguageModel, reference: dict[str, Tensor], moment: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is avoided: the key of the bare prompt among the others, in the authors' way. By default it is refused."""
    # Only the first of the contexts is left out by its position, so the second "" keeps the bare prompt.
    monkeypatch.setattr(editing.locate_then_edit.prompts, "outliers", lambda norms, at: [False] * len(norms))
    moment(reference["second_moment"].double())
    original = Rome(layer=6, prefixes=("", *CONTEXTS), homogeneous_keys=False, refuse_norm=1e9)
    with pytest.warns(UserWarning, match="flagged"), pytest.warns(UserWarning, match="very first token"):
        edit = original.edit(smollm2, [GOOGLE])
    assert edit.origin.report[0]["agreement"] < 0.1
    assert edit.origin.report[0]["relative_norm"] > Rome().refuse_norm
    before = log_perplexity(smollm2)
    with edit.applied(smollm2):
        assert log_perplexity(smollm2) - before > 0.5
