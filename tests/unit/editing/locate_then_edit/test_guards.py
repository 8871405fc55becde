import math
import warnings

import pytest
import torch

from corrigenda import EditRefusedError
from editing.locate_then_edit.guards import Guards, agreement

GUARDS = Guards("ROME", flag_norm=0.5, refuse_norm=2.0)


@pytest.mark.parametrize(
    ("figures", "verdict", "why"),
    [
        ({"agreement": 0.9, "relative_norm": 0.5}, None, ""),
        ({"agreement": 0.2, "relative_norm": 0.1}, None, ""),
        ({"agreement": 0.19, "relative_norm": 0.1}, "flagged", "agreement of keys 0.19"),
        ({"agreement": 0.9, "relative_norm": 0.51}, "flagged", "0.51"),
        ({"agreement": 0.9, "relative_norm": 2.1}, "refused", "outlier"),
        ({"agreement": 0.01, "relative_norm": 0.1}, "refused", "denominator"),
        ({"agreement": -0.9, "relative_norm": 0.1}, "refused", "denominator"),
        ({"agreement": 0.9, "relative_norm": math.nan}, "refused", "not finite"),
        ({"agreement": 0.9, "relative_norm": 0.1, "loss": math.inf}, "refused", "not finite"),
    ],
)
def test_verdicts(figures: dict[str, float], verdict: str | None, why: str) -> None:
    judged = dict(figures)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        GUARDS.judge("the fact", judged)
    assert [word for word in ("refused", "flagged") if word in judged] == ([] if verdict is None else [verdict])
    assert len(said) == (verdict is not None)
    if verdict is not None:
        assert why in judged[verdict]
        assert str(said[0].message).startswith(f"ROME: the edit of fact 'the fact' is {verdict}: ")
    kept = {name for name, value in figures.items() if math.isfinite(value)}
    assert judged.keys() - {"refused", "flagged"} == kept  # what is not finite is absent


def test_the_whole_update() -> None:
    GUARDS.refuse_whole(3, 2.0, 1)
    GUARDS.refuse_whole(3, 3.9, 4)
    with pytest.raises(EditRefusedError, match=r"layer 3 has 4\.10 times"):
        GUARDS.refuse_whole(3, 4.1, 4)
    with pytest.raises(EditRefusedError, match="layer 3 is not finite"):
        GUARDS.refuse_whole(3, math.nan, 1)


def test_agreement_is_the_cosine_where_c_is_the_identity() -> None:
    C = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    left, right = torch.tensor([[1.0, 0.0], [2.0, 1.0]]).double(), torch.tensor([[1.0, 1.0], [2.0, 1.0]]).double()
    inverse = torch.linalg.inv(C)
    found = agreement(left, left @ inverse, right, right @ inverse)
    white = torch.linalg.inv(torch.linalg.cholesky(C)).T
    torch.testing.assert_close(found, torch.cosine_similarity(left @ white, right @ white))
    assert float(found[1]) == pytest.approx(1)
