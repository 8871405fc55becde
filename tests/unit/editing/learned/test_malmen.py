import pytest
import torch
from editors_parts import TONGUE, TOWER
from learned_parts import LAYERS, build, by_hand, by_hooks, drawn

from editing.learned.hypernetwork import kept_network
from editing.learned.malmen import Malmen
from editing.shared.training_rows import target_rows

pytestmark = [pytest.mark.filterwarnings("ignore:.*the edit disturbs"), pytest.mark.usefixtures("own_cache")]
MALMEN = Malmen(layers=LAYERS, refuse_norm=1e9)


@pytest.mark.parametrize("family", ["llama", "gpt2"])  # gated; plain, with a transposed matrix
def test_the_normal_equation_by_hand(family: str) -> None:
    lm = build(family)
    trained = drawn(lm, MALMEN)
    network = trained.network
    trained.save(kept_network(lm, "malmen"))
    facts = [TOWER, TONGUE]
    edit = MALMEN.edit(lm, facts)
    seen = [by_hooks(lm, fact) for fact in facts]
    for place, layer in enumerate(LAYERS):
        keys, residuals = [], []
        for fact, rows in zip(facts, seen, strict=True):
            ids, prompt = target_rows(lm, fact)
            for token in range(prompt - 1, len(ids) - 1):  # from which a token of the target is predicted
                u, d = rows[layer][0][token], rows[layer][1][token]
                pseudo_u, pseudo_d = by_hand(network, place, u, d)
                keys.append(u.double())
                residuals.append(-network.rate(place).item() * float(u.double() @ pseudo_u) * pseudo_d)
        K, R = torch.stack(keys), torch.stack(residuals)
        A = K.T @ K + network.log_weights[place].exp().item() * torch.eye(K.shape[1], dtype=torch.float64)
        expected = torch.linalg.inv(A) @ K.T @ R
        torch.testing.assert_close(edit.delta(layer).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [5, 30])  # beside the base, and in it: more than half of the width
def test_gradients_go_through_the_solution(n: int) -> None:
    network = drawn(build(), MALMEN).network.double()
    draw = torch.Generator().manual_seed(0)
    u, pseudo_u, pseudo_d = (torch.randn(n, size, generator=draw, dtype=torch.float64) for size in (48, 48, 32))

    def total(log_weights: torch.Tensor, log_rates: torch.Tensor, pseudo: torch.Tensor) -> torch.Tensor:
        network.log_weights, network.log_rates = log_weights, log_rates
        left, right = MALMEN.factors(network, 1, u, pseudo_u, pseudo)
        return (left @ right).square().sum()

    start = [network.log_weights.detach(), network.log_rates.detach(), pseudo_d]
    del network.log_weights, network.log_rates  # which hold parameters only
    assert torch.autograd.gradcheck(total, [one.clone().requires_grad_() for one in start])
