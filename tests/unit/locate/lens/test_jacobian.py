from pathlib import Path

import pytest
import tiny
import torch

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Add, Read, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import Site
from corrigenda.moments.text import Text
from locate.lens import jacobian
from locate.lens.jacobian import JacobianSettings, jacobian_lens, position_jacobians
from locate.lens.logit_lens import logit_lens

IDS = [4, 9, 12, 30, 7]
SMALL = JacobianSettings(text=Text(tokens=36, length=6), samples=5)


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_a_jacobian_is_that_of_finite_differences(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build(family)
    lm.model.double()
    monkeypatch.setattr(jacobian, "ROWS", 20)
    found = position_jacobians(lm, IDS)
    assert torch.allclose(found[-1], torch.eye(tiny.WIDTH, dtype=torch.float64))
    batch, at = lm.batch([IDS]), torch.tensor([len(IDS) - 1])
    direction = torch.randn(1, tiny.WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # Norms that work in float32 in any model bound what differences can say.
    step, ends = 3e-3, []
    for sign in (1, -1):
        add = intervene(lm, Site("block", 1), Add(sign * step * direction), at)
        with torch.no_grad(), add, intervene(lm, Site("block", -1), Read(), at) as seen:
            forward_logits(lm, batch)
        ends.append(seen.value[0])
    expected = (ends[0] - ends[1]) / (2 * step)
    assert torch.allclose(found[1] @ direction[0], expected, atol=2e-2 * float(expected.abs().max()))


def test_the_mean_is_kept_and_gone_on_with(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = jacobian_lens(lm, SMALL)
    sequences = SMALL.text.sequences(lm)[:5]
    by_hand = torch.stack([position_jacobians(lm, ids).double() for ids in sequences]).mean(0)
    assert whole.samples == 5
    assert torch.allclose(whole.matrices.double(), by_hand, atol=1e-6)
    whole.path.unlink()
    asked: list[object] = []

    def cut_short(lm: object, ids: object) -> torch.Tensor:
        asked.append(ids)
        if len(asked) == 5:
            raise KeyboardInterrupt
        return position_jacobians(lm, ids)  # type: ignore[arg-type]

    monkeypatch.setattr(jacobian, "position_jacobians", cut_short)
    with pytest.raises(KeyboardInterrupt):
        jacobian_lens(lm, SMALL)
    assert torch.equal(jacobian_lens(lm, SMALL).matrices, whole.matrices)
    assert len(asked) == 6  # only the fifth again
    jacobian_lens(lm, SMALL)
    assert len(asked) == 6


def test_it_reads_states_where_the_layers_above_take_them(lm: LanguageModel) -> None:
    lens = jacobian_lens(lm, SMALL)
    plain, carried = (logit_lens(lm, "the tower of Paris", reader=reader) for reader in (None, lens))
    assert carried.lens == "jacobian"
    assert torch.allclose(carried.probabilities[-1], plain.probabilities[-1], atol=1e-5)
    assert not torch.allclose(carried.probabilities[0], plain.probabilities[0], atol=1e-3)
    state = torch.randn(2, 3, tiny.WIDTH, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(lens.carry(state, 1)[1, 2], lens.matrices[1] @ state[1, 2], atol=1e-5)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="samples=32 positions need as many sequences, and the text has 6"):
        jacobian_lens(tiny.build("llama"), JacobianSettings(text=SMALL.text))
