"""What is tuned of each editor: that its settings are there, and may have the values of their ranges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

import editing
from corrigenda.settings import Positive, Share, checked
from editing.registry import CLASSES, EDITORS
from editing.spaces import SPACES, UNTUNED, Number, Space, annotated_bounds, space_of


def changed(editor: Any, setting: str, value: float) -> Any:
    """The editor with one setting changed; its class checks the value."""
    name, _, rest = setting.partition(".")
    return replace(editor, **{name: changed(getattr(editor, name), rest, value) if rest else value})


def test_each_editor_has_an_entry_or_a_reason() -> None:
    assert sorted([*SPACES, *UNTUNED]) == sorted(CLASSES)


@pytest.mark.parametrize("name", SPACES)
def test_both_ends_of_each_range_are_allowed(name: str) -> None:
    editor, space = EDITORS[name](), SPACES[name]
    assert space_of(editor) is space
    assert hasattr(editor, "layer" if space.layers == "one" else "number")
    for number in space.numbers:
        low, high = number.bounds(type(editor))
        assert low < high
        assert low > 0 or not number.log
        for value in (low, high):
            assert changed(editor, number.setting, value) != editor


def test_an_annotation_says_the_range() -> None:
    assert annotated_bounds(editing.AlphaEdit, "energy") == (0, 1)
    assert annotated_bounds(editing.Rome, "value.kl_factor") == (0, None)
    assert annotated_bounds(editing.UltraEdit, "step") == (None, None)  # above 0: no least value
    assert Number("margin", 0.4).bounds(editing.Wise) == (0.4, 1)
    with pytest.raises(TypeError, match=r"Rome\.value\.clamp_norm_factor: its annotation has no range; give low"):
        Number("value.clamp_norm_factor", 1.0).bounds(editing.Rome)
    with pytest.raises(AttributeError, match="Rome has no setting beauty"):
        annotated_bounds(editing.Rome, "beauty")


def test_an_editor_from_outside_has_its_own() -> None:
    @dataclass(frozen=True)
    @checked
    class Mine:
        space = Space("one", (Number("much"),))
        name = "mine"
        layer: int | None = None
        much: Share = 0.5
        more: Positive = 1.0

    assert space_of(Mine()).numbers[0].bounds(Mine) == (0, 1)

    class Derived(editing.Rome):
        pass

    assert space_of(Derived()) is SPACES["rome"]
    with pytest.raises(ValueError, match="NoEdit: it is not declared what is tuned of this editor; give its class"):
        space_of(editing.NoEdit())
