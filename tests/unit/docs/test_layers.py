import layers
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "RESAMPLES", 200)


def facts_of(scores: list[float], n: int = 20) -> dict[int, dict[str, list[float]]]:
    """By layer the parts of S of n facts, all of them with the same share."""
    return {
        layer: {key: [float(number < round(share * n)) for number in range(n)] for key in layers.PARTS}
        for layer, share in enumerate(scores)
    }


def test_correlations_by_hand() -> None:
    """Depth 0 1 2 3 4, S in ranks 2 1 4 3 5, effects in ranks 1 3 2 5 4: 0.3, 0.8, (0.3 - 0.64) / 0.36."""
    facts = np.array([[parts[key] for key in layers.PARTS] for parts in facts_of([0.2, 0.1, 0.4, 0.3, 0.5]).values()])
    found = layers.correlations(facts, np.array([[0.1, 0.3, 0.2, 0.5, 0.4]] * 2), range(5))
    assert found == pytest.approx((0.3, 0.8, -0.34 / 0.36))


def test_the_score_is_of_means_and_the_effect_a_mean_over_facts() -> None:
    """The harmonic mean of 1, 0.5 and 0.5 at layer 0 is 0.6, and 0.7 at layer 1; each fact alone would have 0."""
    facts = np.array([[[1, 1], [1, 0], [0, 1]], [[0.7, 0.7]] * 3, [[0.5, 0.5]] * 3])
    by_hand = np.corrcoef([2, 3, 1], [2, 1, 3])[0, 1]  # the effects' means: 0.3, 0.2, 0.4
    found = layers.correlations(facts, np.array([[0.6, 0.0, 0.4], [0.0, 0.4, 0.4]]), [0, 1, 2])
    assert found[0] == pytest.approx(by_hand)


def test_few_facts_give_a_wide_interval() -> None:
    draw = np.random.default_rng(0)
    facts, effects = (draw.uniform(size=(10, 3, 20)) < 0.7).astype(float), draw.uniform(size=(24, 10))
    names = [str(number) for number in range(24)]
    bounds = layers.bootstrapped(facts, names[:20], effects, names, range(10))
    assert all(found is not None and found[1] - found[0] > 0.4 for found in bounds)
    alike = layers.bootstrapped(facts, ["one subject"] * 20, effects, ["one"] * 24, range(10))
    assert all(found is not None and found[0] == found[1] for found in alike)  # one subject: nothing to draw
