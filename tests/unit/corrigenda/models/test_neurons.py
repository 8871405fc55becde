import pytest
import tiny

from corrigenda.models.neurons import as_neurons, in_common, in_model


def test_pairs_of_any_kind() -> None:
    assert as_neurons([[1, 2], (3, 4), [5.0, 6]]) == ((1, 2), (3, 4), (5, 6))
    for wrong in ([3], [(1, 2, 3)], [("a", 1)], ["12", None]):
        with pytest.raises(ValueError, match=r"a neuron is a pair \(layer, number\), not"):
            as_neurons(wrong)


def test_places_in_a_model() -> None:
    lm = tiny.build("llama")
    assert in_model(lm, [(-1, 7), (1, 3), (3, 7), (1, 3)]) == ((3, 7), (1, 3))
    for wrong in ((9, 0), (0, 48), (0, -1)):
        with pytest.raises(IndexError):
            in_model(lm, [wrong])


def test_what_sets_have_in_common() -> None:
    counts = {(2, 1): 7, (1, 9): 8, (1, 4): 8, (0, 0): 6}
    assert in_common(counts, 10, 0.7) == ((1, 4), (1, 9))
    assert in_common({(0, 1): 57}, 100, 0.57) == ()  # as many, though in floating point 0.57 * 100 < 57
    assert in_common(counts, 10, 0.65) == ((1, 4), (1, 9), (2, 1))
    assert in_common(counts, 10, 0.0) == ((1, 4), (1, 9), (2, 1), (0, 0))
    assert in_common({}, 3, 0.5) == ()
