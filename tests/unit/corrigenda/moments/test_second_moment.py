from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from malformed_parts import refused
from moments_parts import TEXT, elsewhere, noted
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.recording import forward_to
from corrigenda.moments import second_moment as module
from corrigenda.moments import sums
from corrigenda.moments.second_moment import SecondMoment, rank_deficient, second_moment, second_moments
from corrigenda.moments.text import Text
from corrigenda.prompts import TokenBatch


def of_rows(rows: Tensor) -> SecondMoment:
    return SecondMoment(rows.T @ rows / len(rows), len(rows), 0, TEXT)


def drawn(n: int, width: int = 12, seed: int = 0) -> Tensor:
    """Rows whose directions have different energies."""
    rows = torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows * torch.logspace(-2, 1, width, dtype=torch.float64)


def test_each_factorisation_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cholesky, eigen = (noted(monkeypatch, torch.linalg, name) for name in ("cholesky", "eigh"))
    moment, keys = of_rows(drawn(40)), drawn(3, seed=1)
    first = moment.solve(keys, 1e-3)
    assert torch.equal(moment.solve(keys, 1e-3), first)
    moment.solve(keys[:1], 1e-3)
    assert (len(cholesky), len(eigen)) == (1, 0)
    other = moment.solve(keys, 1e-1)  # another ridge is another factor, and leaves the first alone
    assert not torch.allclose(other, first)
    assert torch.equal(moment.solve(keys, 1e-3), first)
    assert len(cholesky) == 2
    moment.whitening(0.1), moment.whitening(0.2), moment.null_space(0.5), moment.rank
    assert (len(cholesky), len(eigen)) == (2, 1)


def test_whitened_coefficients_have_the_second_moment_one() -> None:
    rows = drawn(200)
    moment = of_rows(rows)
    white = rows @ moment.whitening()
    torch.testing.assert_close(white.T @ white / len(rows), torch.eye(12, dtype=torch.float64), atol=1e-8, rtol=0)
    # With a ridge: W (C + ridge scale I) W = I.
    scale = float(moment.matrix.diagonal().mean())
    W = moment.whitening(0.03)
    ridged = moment.matrix + 0.03 * scale * torch.eye(12, dtype=torch.float64)
    torch.testing.assert_close(W @ ridged @ W, torch.eye(12, dtype=torch.float64), atol=1e-8, rtol=0)
    torch.testing.assert_close(W, W.T)


def test_rank_and_the_ridge_that_a_singular_one_needs() -> None:
    assert of_rows(drawn(40)).rank == 12
    few = of_rows(drawn(5))
    assert (few.rank, few.tokens) == (5, 5)
    refused(ValueError, r"layer 0 has rank 5 of 12 \(over 5 tokens\).*ridge above 0", few.whitening)
    assert few.whitening(0.01).isfinite().all()


def test_null_space_is_what_the_text_never_uses() -> None:
    rows = drawn(5)
    basis = of_rows(rows).null_space(0.0)
    assert basis.shape == (12, 7)
    torch.testing.assert_close(basis.T @ basis, torch.eye(7, dtype=torch.float64))
    assert float((rows @ basis).abs().max()) < 1e-6
    # By brute force: the projector on the complement of the rows.
    expected = torch.eye(12, dtype=torch.float64) - torch.linalg.pinv(rows) @ rows
    torch.testing.assert_close(basis @ basis.T, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("energy", [1e-6, 1e-3, 0.1, 0.6])
def test_null_space_holds_the_share_of_energy_and_no_more(energy: float) -> None:
    moment = of_rows(drawn(100))
    basis = moment.null_space(energy)
    inside = float(torch.trace(basis.T @ moment.matrix @ basis) / torch.trace(moment.matrix))
    assert inside <= energy
    wider = torch.linalg.eigh(moment.matrix).eigenvectors[:, : basis.shape[1] + 1]
    assert float(torch.trace(wider.T @ moment.matrix @ wider) / torch.trace(moment.matrix)) > energy


def test_null_space_of_everything_and_of_nothing() -> None:
    moment = of_rows(drawn(100))
    assert moment.null_space(1.0).shape == (12, 12)
    assert moment.null_space(0.0).shape == (12, 0)
    for energy in (-0.1, 1.1, float("nan")):
        refused(ValueError, r"from 0 to 1", moment.null_space, energy)


# -- several layers at once


@pytest.mark.parametrize(
    ("held", "expected"), [(9, [3] * 13), (2, [3] * 13 + [2] * 13), (0.5, [3] * 13 + [1] * 13 + [2] * 13)]
)
def test_several_layers_in_one_pass(
    held: float, expected: list[int], lm: LanguageModel, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with elsewhere(tmp_path / "other"):
        alone = {layer: second_moment(lm, layer, TEXT) for layer in (1, 2, 3)}
    made, ran = noted(monkeypatch, module, "SquareSum"), list[tuple[int, int]]()

    def run(lm: LanguageModel, batch: TokenBatch, layer: int) -> None:
        ran.append((layer, len(made)))
        forward_to(lm, batch, layer)

    monkeypatch.setattr(module, "forward_to", run)
    monkeypatch.setattr(module, "HELD", held * 8 * 48**2)
    found = second_moments(lm, [3, 1, -2], TEXT)
    assert list(found) == [3, 1, 2]
    assert [layer for layer, _ in ran] == expected  # no layer above the highest
    assert ran[0][1] == min(3, max(1, int(held)))  # no sum before its turn: each takes its whole memory
    for layer, moment in found.items():
        assert torch.equal(moment.matrix, alone[layer].matrix)
        assert (moment.layer, moment.tokens, moment.text) == (layer, 600, TEXT)
    names = [{path.name for path in (folder / "moments").iterdir()} for folder in (cache, tmp_path / "other")]
    assert names[0] == names[1]
    assert len(names[0]) == 3


def test_layers_that_are_there_are_not_computed_again(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    first = second_moment(lm, 3, TEXT)
    ran = noted(monkeypatch, module, "forward_to")
    found = second_moments(lm, [1, 3], TEXT)
    assert [args[2] for args in ran] == [1] * 13
    assert torch.equal(found[3].matrix, first.matrix)


def test_layers_interrupted_at_different_batches(
    lm: LanguageModel, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with elsewhere(tmp_path / "other"):
        expected = {layer: second_moment(lm, layer, TEXT).matrix for layer in (1, 2)}
    for layers, after in (([1], 7), ([1, 2], 4)):
        with monkeypatch.context() as patch:
            noted(patch, module, "forward_to", after)
            with pytest.raises(KeyboardInterrupt):
                second_moments(lm, layers, TEXT)
    found = second_moments(lm, [1, 2], TEXT)
    for layer, matrix in expected.items():
        assert torch.equal(found[layer].matrix, matrix)
        assert found[layer].tokens == 600
    assert sorted(path.suffix for path in (cache / "moments").iterdir()) == [".safetensors"] * 2


def test_only_one_of_many_is_in_memory(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 0)
    read = noted(monkeypatch, module, "read_mean")
    found = second_moments(lm, [1, 2, 3], TEXT)
    assert (list(found), len(found), read) == ([1, 2, 3], 3, [])
    assert found[2].layer == 2
    assert found[2] is not found[2]
    assert 1 in found
    assert 0 not in found
    assert len(read) == 3
    assert not second_moments(lm, [], TEXT)


def test_those_asked_for_last_are_kept(lm: LanguageModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = second_moments(lm, [1, 2, 3], TEXT)
    size = max(path.stat().st_size for path in (cache / "moments").iterdir())
    monkeypatch.setattr(module, "KEPT", 5 * size)  # two, each with a factor
    read = noted(monkeypatch, module, "read_mean")
    second = [found[layer] for layer in (1, 2, 1, 3)][1]
    assert len(read) == 3
    assert [moment.layer for _, moment in lm.kept.values()] == [1, 3]
    assert found[2] is not second
    assert [moment.layer for _, moment in lm.kept.values()] == [3, 2]


def test_that_a_moment_is_of_full_rank_is_found_once(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    few = second_moments(lm, [1, 2], Text("self", tokens=40, length=10))
    assert [moment.layer for moment in rank_deficient(few)] == [1, 2]
    found = second_moments(lm, [1, 2], TEXT)
    assert not list(rank_deficient(found))
    monkeypatch.setattr(module, "kept_moment", lambda *_: pytest.fail("read again"))
    assert not list(rank_deficient(found))


# -- the sum itself


def mean_in(path: Path) -> Tensor:
    return sums.read_mean(path)[0]


@pytest.mark.parametrize("block", [5, 12])
@pytest.mark.parametrize("n_batches", [2, 3, 7])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-6)])
def test_a_sum_is_what_brute_force_gives(
    dtype: torch.dtype, most: float, n_batches: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was cut short, and gone on with from the last checkpoint, has the same bits."""
    monkeypatch.setattr(sums, "BLOCK", block)
    monkeypatch.setattr(sums, "CHECKPOINT", 2)
    batches = [drawn(50, seed=seed).to(dtype) for seed in range(n_batches)]
    rows = torch.cat(batches).double()

    def summed(name: str, *cut_after: int) -> Tensor:
        path = tmp_path / f"{name}.safetensors"
        for stop in (*cut_after, None):
            one = sums.SquareSum(12, path)
            for batch in batches[one.done : stop]:
                one.add(batch)
        one.finish()
        return mean_in(path)

    whole = summed("whole")
    torch.testing.assert_close(whole, rows.T @ rows / len(rows), atol=most, rtol=most)
    assert torch.equal(summed("cut", n_batches - 1), whole)
    monkeypatch.setattr(sums, "FLOAT64_ON", ())  # as on an accelerator
    rough = summed("rough")
    torch.testing.assert_close(rough, whole, atol=1e-5, rtol=1e-5)
    assert not torch.equal(rough, whole)
    assert torch.equal(summed("cut rough", n_batches - 1), rough)


def test_the_rank_is_at_most_the_number_of_tokens(tmp_path: Path) -> None:
    """A sum in float32 leaves next to nothing, and not nothing, in the directions that no token has."""
    one = sums.SquareSum(12, tmp_path / "sum.safetensors")
    one.add(drawn(5).float())
    one.finish()
    moment = SecondMoment(mean_in(tmp_path / "sum.safetensors"), 5, 0, TEXT)
    assert moment.rank == 5
    assert float(moment.eigen[0][6].abs()) > 0


def test_a_layer_named_twice(lm: LanguageModel) -> None:
    refused(ValueError, "named twice", second_moments, lm, [1, -3], TEXT)
    refused(IndexError, "4 layers", second_moments, lm, [1, 4], TEXT)


# -- what the disk did to files


def flipped(path: Path) -> None:
    """One bit of its last number is another."""
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [flipped, lambda path: path.write_bytes(path.read_bytes()[:-100])])
@pytest.mark.parametrize("kind", ["moments", "texts"])
def test_what_is_damaged_is_said_and_computed_again(
    kind: str, damage: Callable[[Path], None], lm: LanguageModel, cache: Path
) -> None:
    expected = second_moments(lm, [1], TEXT)[1].matrix.clone()  # the file itself is mapped into memory
    lm.kept.clear()
    [path] = sorted((cache / kind).rglob("*.safetensors"))[:1]
    damage(path)
    if kind == "texts":
        for moment in (cache / "moments").iterdir():
            moment.unlink()
    with pytest.warns(UserWarning, match=rf"{path.name} is damaged .*; it is (computed|sampled) again"):
        assert torch.equal(second_moments(lm, [1], TEXT)[1].matrix, expected)
    lm.kept.clear()
    assert torch.equal(second_moments(lm, [1], TEXT)[1].matrix, expected)


def test_a_damaged_sum_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "sum.safetensors"
    first = sums.SquareSum(4, path)
    for _ in range(sums.CHECKPOINT):
        first.add(torch.ones(2, 4))
    flipped(path.with_suffix(".part"))
    with pytest.warns(UserWarning, match=r"sum\.part is damaged .*; the sum is begun anew"):
        again = sums.SquareSum(4, path)
    assert again.done == 0
    again.add(torch.full((1, 4), 2.0))
    again.finish()
    assert torch.equal(mean_in(path), torch.full((4, 4), 4.0, dtype=torch.float64))
