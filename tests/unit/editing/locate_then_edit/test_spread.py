import pytest

from editing.locate_then_edit.spread import Rule, spread


def test_memit() -> None:
    found = spread([2, 3, 4, 5, 6])
    assert found == ((2, 1 / 5), (3, 1 / 4), (4, 1 / 3), (5, 1 / 2), (6, 1.0))
    left, written = 1.0, []
    for _, share in found:
        written.append(left * share)
        left -= left * share
    assert written == pytest.approx([0.2] * 5)
    assert left == 0


def test_pmet() -> None:
    assert spread([8, 4, 6], "root") == ((4, pytest.approx(0.57735026919)), (6, pytest.approx(0.70710678119)), (8, 1.0))


def test_one_layer_writes_everything() -> None:
    assert spread([5]) == spread([5], "root") == ((5, 1.0),)


@pytest.mark.parametrize(("layers", "rule"), [([], "even"), ([3, 3], "even"), ([3], "square")])
def test_what_cannot_be_spread(layers: list[int], rule: Rule) -> None:
    with pytest.raises(ValueError, match=r"each named once|'even' or 'root', not 'square'"):
        spread(layers, rule)
