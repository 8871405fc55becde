"""The parts of a relation's map, against plain forwards that are written here."""

import pytest
import tiny
import torch
from relation_parts import jacobian, plain, states

from corrigenda import Fact, LanguageModel
from corrigenda.forward.jacobians import last_state_jacobians
from corrigenda.forward.recording import record
from corrigenda.linear_relations import affine_maps, changed_logits, low_rank_inverses

FACTS = [
    Fact("Danielle Darrieux", "the language of {} is", None, "French"),
    Fact("Big Ben", "{} speaks", None, "English"),
    Fact("Rome", "the tongue of {} is the", None, "German"),
]
OTHERS = [[*FACTS[:i], *FACTS[i + 1 :]] for i in range(3)]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", [*tiny.DECODER_KINDS, *tiny.MIXTURE_KINDS])
def test_jacobians_equal_those_of_a_plain_forward(family: str) -> None:
    lm = tiny.build(family)
    ids, other = lm.tokens("the language of Danielle Darrieux is the"), lm.tokens("Rome is")
    recording = record(lm, lm.batch([other, ids]), [1])
    for position in (3, len(ids) - 1):
        found = last_state_jacobians(lm, recording, 1, position, [1, 3])
        for layer, each in zip((1, 3), found, strict=True):
            wanted = jacobian(lm, ids, layer, position)
            assert float(wanted.abs().max()) > 1e-3
            assert torch.allclose(each, wanted, atol=2e-5 * float(wanted.abs().max())), (layer, position)


def asked(lm: LanguageModel, i: int) -> tuple[list[int], int]:
    """The tokens of a sample behind the others, and where its subject ends."""
    before = "".join(f"{fact.statement} {fact.target_true}\n" for fact in OTHERS[i])
    ids = lm.tokens(before + FACTS[i].statement)
    word = lm.tokens(FACTS[i].subject)[-1]
    return ids, max(place for place, token in enumerate(ids) if token == word)


def test_a_map_is_the_mean_of_what_samples_give(lm: LanguageModel) -> None:
    samples = states(lm, FACTS, OTHERS, (0, 2))
    maps = affine_maps(lm, samples)
    for layer in (0, 2):
        jacobians, biases = [], []
        for i in range(3):
            ids, position = asked(lm, i)
            with torch.no_grad():
                s, o, _ = plain(lm, ids, layer, position, None)
            assert torch.allclose(samples.at(layer)[i], s, atol=1e-5)
            assert torch.allclose(samples.o[i], o, atol=1e-4)
            jacobians.append(jacobian(lm, ids, layer, position))
            biases.append(o - jacobians[-1] @ s)
        weight, bias = maps.at(layer)
        assert torch.allclose(weight, torch.stack(jacobians).mean(0), atol=1e-4)
        assert torch.allclose(bias, torch.stack(biases).mean(0), atol=1e-3)
        # Held out, the first sample has the map of the two others.
        place = samples.layers.index(layer)
        s = samples.at(layer)[0]
        assert torch.allclose(maps.held_out[0, place], (jacobians[1] + jacobians[2]) @ s / 2, atol=1e-3)
        assert torch.allclose(maps.held_out_biases[0, place], (biases[1] + biases[2]) / 2, atol=1e-3)


def test_a_model_in_half_precision_has_a_map_in_float32(lm: LanguageModel) -> None:
    whole = affine_maps(lm, states(lm, FACTS, OTHERS, (0, 2)))
    lm.model.bfloat16()
    found = affine_maps(lm, states(lm, FACTS, OTHERS, (0, 2)))
    for part, wanted in ((found.weights, whole.weights), (found.biases, whole.biases)):
        assert part.dtype == torch.float32
        assert float((part - wanted).norm() / wanted.norm()) < 0.05
    assert all(inverse.isfinite().all() for inverse in low_rank_inverses(found.at(2)[0], [2]))


def test_a_changed_subject_is_run_as_a_whole_forward_runs_it() -> None:
    lm = tiny.build("gpt2")
    samples = states(lm, FACTS, OTHERS, (2,))
    deltas = 10 * torch.randn(4, lm.memory(0).d_model, generator=torch.Generator().manual_seed(1))
    rows = torch.tensor([2, 0, 2, 1])
    found = changed_logits(lm, samples, 2, rows, deltas)
    for row, delta, logits in zip(rows.tolist(), deltas, found, strict=True):
        ids, position = asked(lm, row)
        with torch.no_grad():
            s, _, before = plain(lm, ids, 2, position, None)
            wanted = plain(lm, ids, 2, position, s + delta)[2]
        assert torch.allclose(logits, wanted, atol=1e-4)
        assert not torch.allclose(wanted, before, atol=1e-2)


def test_the_low_rank_inverse_by_hand() -> None:
    # W = diag(4, 2, 1) in turned axes: rank 1 inverts along the first of them alone, rank 9 as rank 3.
    turn = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    weight = torch.diag(torch.tensor([4.0, 2.0, 1.0])) @ turn
    one, all_of_them, more = low_rank_inverses(weight, [1, 3, 9])
    assert torch.allclose(one @ torch.tensor([8.0, 6.0, 5.0]), torch.tensor([0.0, 2.0, 0.0]))
    assert torch.allclose(all_of_them @ torch.tensor([8.0, 6.0, 5.0]), torch.tensor([5.0, 2.0, 3.0]))
    assert torch.allclose(more, all_of_them)
    flat = torch.diag(torch.tensor([2.0, 0.0]))
    assert torch.allclose(low_rank_inverses(flat, [2])[0], torch.diag(torch.tensor([0.5, 0.0])))
