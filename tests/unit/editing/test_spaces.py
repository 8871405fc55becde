from dataclasses import dataclass, replace
from typing import Any

import pytest
from editors_parts import shipped

import editing
from corrigenda.settings.checked import Positive, Share, checked
from editing.registry import EDITORS, declaration, register, space_of
from editing.spaces import Number, Space, annotated_bounds


def changed(editor: Any, setting: str, value: float) -> Any:
    """The editor with one setting changed; its class checks the value."""
    name, _, rest = setting.partition(".")
    return replace(editor, **{name: changed(getattr(editor, name), rest, value) if rest else value})


def test_each_editor_has_a_space_or_a_reason() -> None:
    said = {name: declaration(EDITORS[name]).space for name in EDITORS.declared}
    assert [name for name, space in said.items() if not space or str(space).startswith("it is not declared")] == []


@pytest.mark.parametrize("name", [n for n in EDITORS.declared if isinstance(declaration(EDITORS[n]).space, Space)])
def test_both_ends_of_each_range_are_allowed(name: str) -> None:
    editor: Any = EDITORS[name]()
    space = space_of(editor)
    assert space.layers == "none" or hasattr(editor, "layer" if space.layers == "one" else "number")
    for number in filter(lambda number: number.matters(editor), space.numbers):
        low, high = number.bounds(type(editor))
        assert low < high
        assert low > 0 or not number.log
        for value in (low, high):
            assert changed(editor, number.setting, value) != editor


def test_what_is_tuned_follows_from_other_settings() -> None:
    """The margins of `wise_whitened` are calibrated; those of the paper are scaled, together with the rate."""

    def tuned(editor: Any) -> dict[str, Any]:
        return {number.setting: number for number in space_of(editor).numbers if number.matters(editor)}

    assert list(tuned(editing.Wise())) == ["margin", "weight"]
    paper = shipped("wise_paper")
    assert list(tuned(paper)) == ["lr", "margin_scale"]
    for name, number in tuned(paper).items():
        low, high = number.bounds(type(paper))
        assert low <= getattr(paper, name) <= high
        assert changed(paper, name, low) != changed(paper, name, high)


def test_an_annotation_says_the_range() -> None:
    assert annotated_bounds(editing.AlphaEdit, "energy") == (0, 1)
    assert annotated_bounds(editing.Rome, "value.kl_factor") == (0, None)
    assert annotated_bounds(editing.UltraEdit, "step") == (None, None)  # above 0: no least value
    assert Number("margin", 0.4).bounds(editing.Wise) == (0.4, 1)
    with pytest.raises(TypeError, match=r"Rome\.value\.clamp_norm_factor: its annotation has no range; give low"):
        Number("value.clamp_norm_factor", 1.0).bounds(editing.Rome)
    with pytest.raises(AttributeError, match="Rome has no setting beauty"):
        annotated_bounds(editing.Rome, "beauty")


def test_an_editor_from_outside_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EDITORS, "_found", dict(EDITORS._found))

    @register("mine", space=Space("one", (Number("much"),)))
    @dataclass(frozen=True)
    @checked
    class Mine:
        name = "mine"
        layer: int | None = None
        much: Share = 0.5
        more: Positive = 1.0

        def edit(self, lm: Any, facts: Any) -> Any: ...

    assert space_of(Mine()).numbers[0].bounds(Mine) == (0, 1)

    class Derived(editing.Rome):
        pass

    assert space_of(Derived()) is space_of(editing.Rome())
    with pytest.raises(ValueError, match="editor=none cannot be tuned: it does nothing; give its register"):
        space_of(editing.NoEdit())
