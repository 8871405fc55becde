import pytest

from editing.locate_then_edit.spread import Rule, spread


@pytest.mark.parametrize(("layers", "rule"), [([], "even"), ([3, 3], "even"), ([3], "square")])
def test_what_cannot_be_spread(layers: list[int], rule: Rule) -> None:
    with pytest.raises(ValueError, match=r"each named once|'even' or 'root', not 'square'"):
        spread(layers, rule)
