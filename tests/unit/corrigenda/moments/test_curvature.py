from pathlib import Path

import pytest
import tiny
import torch
from by_hooks import changed
from moments_parts import noted
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.moments import curvature as curvatures
from corrigenda.moments.curvature import Curvature, Labels, curvature
from corrigenda.moments.second_moment import SecondMoment
from corrigenda.moments.text import Text

TEXT = Text(tokens=300, length=12)


def build(family: str = "llama") -> LanguageModel:
    return tiny.build(family, scale=8.0)


def moment(width: int, seed: int, rank: int | None = None) -> SecondMoment:
    rows = torch.randn(rank or 3 * width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = rows * torch.linspace(0.2, 2, width)
    return SecondMoment(rows.T @ rows / len(rows), len(rows), 0, Text())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_the_projection_removes_exactly_the_high_part(share: float) -> None:
    """By the eigendecomposition of the whole Kronecker product, of 42 by 42."""
    A, G = moment(7, 0), moment(6, 1)
    size, directions = torch.linalg.eigh(torch.kron(A.matrix, G.matrix))
    size, directions = size.flip(0), directions.flip(1)
    n_high = 0 if share == 0 else int((size.cumsum(0) < share * size.sum()).sum()) + 1
    free = directions[:, n_high:]
    change = torch.randn(7, 6, generator=torch.Generator().manual_seed(2))
    expected = (free @ free.T @ change.double().flatten()).reshape(7, 6)
    low = Curvature(A, G).low(share)
    assert int((~low.free).sum()) == n_high
    found = low.project(change)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(low.project(found), found, rtol=1e-4, atol=1e-5)


def test_the_whole_share_leaves_what_the_text_never_uses() -> None:
    A, G = moment(7, 0, rank=4), moment(6, 1)
    low = Curvature(A, G).low(1.0)
    assert int(low.free.sum()) >= 3 * 6
    with pytest.raises(ValueError, match=r"share=1\.5"):
        Curvature(A, G).low(1.5)


def by_autograd(lm: LanguageModel, layer: int, sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
    """E[m m^T] over all tokens, and E[g g^T] over those with a next one, of the text's own labels; by plain hooks."""
    module = dict(lm.model.named_modules())[lm.memory(layer).path.removesuffix(".weight")]
    keys, gradients = [], []
    for ids in sequences:
        seen: list[Tensor] = []

        def leaf(entered: Tensor, output: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.extend([entered.detach()[0], output.detach().requires_grad_()])
            return seen[1]

        with changed(module, leaf), torch.enable_grad():
            logits = lm.model(input_ids=torch.tensor([ids])).logits[0]
            torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="sum").backward()
        keys.append(seen[0])
        gradients.append(seen[1].grad[0, :-1])
    m, g = torch.cat(keys).double(), torch.cat(gradients).double()
    return m.T @ m / len(m), g.T @ g / len(g)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_factors_are_those_of_autograd(family: str) -> None:
    lm = build(family)
    lm.model.double()
    found = curvature(lm, 1, TEXT, "text")
    sequences = TEXT.sequences(lm)
    A, _ = by_autograd(lm, 1, sequences)
    _, G = by_autograd(lm, 1, sequences[:22])  # 8 tokens for each of its 32 rows, in sequences of 12
    torch.testing.assert_close(found.coefficients.matrix, A, rtol=1e-4, atol=1e-6 * float(A.max()))
    torch.testing.assert_close(found.gradients.matrix, G, rtol=1e-4, atol=1e-5 * float(G.max()))


def test_sampled_labels_are_the_models_predictions() -> None:
    """In the mean over many draws g g^T at the last layer is the Gauss-Newton matrix's: J^T (diag p - p p^T) J."""
    lm = build()
    [ids] = Text(tokens=12, length=12).sequences(lm)
    ids = ids[:2]  # one token with a next one
    leaf = torch.zeros(tiny.WIDTH, requires_grad=True)
    with torch.enable_grad(), lm.memory(3).add(leaf, torch.tensor([[True, False]])):
        logits = lm.model(input_ids=torch.tensor([ids])).logits[0, 0]
    jacobian = torch.stack([torch.autograd.grad(one, leaf, retain_graph=True)[0] for one in logits])
    p = logits.detach().softmax(-1)
    exact = jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian
    generator = torch.Generator().manual_seed(0)
    g = curvatures._gradients(lm, 3, [ids] * 4000, "sampled", generator)
    found = g.T @ g / len(g)
    assert float((found - exact).norm() / exact.norm()) < 0.1  # 4,000 draws: some per cent
    own = curvatures._gradients(lm, 3, [ids], "text", generator)
    assert float((own.T @ own - exact).norm() / exact.norm()) > 0.3


@pytest.mark.parametrize("labels", ["sampled", "text"])
def test_factors_are_kept_and_gone_on_with(labels: Labels, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = build()
    whole = curvature(lm, 2, TEXT, labels).gradients.matrix.clone()
    for path in cache.glob("moments/*"):
        path.unlink()
    monkeypatch.setattr("corrigenda.moments.sums.CHECKPOINT", 1)
    with monkeypatch.context() as patch:
        noted(patch, curvatures, "_gradients", 2)
        with pytest.raises(KeyboardInterrupt):
            curvature(build(), 2, TEXT, labels)
    assert list(cache.glob("moments/*.part"))
    assert torch.equal(curvature(build(), 2, TEXT, labels).gradients.matrix, whole)
    calls = noted(monkeypatch, curvatures, "_gradients")
    assert torch.equal(curvature(build(), -2, TEXT, labels).gradients.matrix, whole)
    assert not calls
    assert not list(cache.glob("moments/*.part"))
