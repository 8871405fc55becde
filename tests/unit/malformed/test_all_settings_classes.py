import dataclasses
import math
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from annotated_types import Ge, Gt, Le, Lt
from settings_classes import CLASSES

import editing
import eval
import locate
from corrigenda.errors import SettingsError
from corrigenda.settings.checked import checked, is_checked
from editing import Saved
from jobs.trace import TraceSettings


def members(hint: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The types of a union with what is said of each; of a type that is no union, that one."""
    if get_origin(hint) in (Union, types.UnionType):
        for part in get_args(hint):
            yield from members(part)
    elif get_origin(hint) is Annotated:
        plain, *said = get_args(hint)
        yield plain, tuple(said)
    else:
        yield hint, ()


def outside(said: tuple[Any, ...]) -> Iterator[float]:
    """Values just outside a range."""
    for bound in said:
        if isinstance(bound, Ge):
            yield bound.ge - 1  # type: ignore[operator]
        if isinstance(bound, Gt):
            yield from (bound.gt, bound.gt - 1)  # type: ignore[misc, operator]
        if isinstance(bound, Le):
            yield bound.le + 1  # type: ignore[operator]
        if isinstance(bound, Lt):
            yield from (bound.lt, bound.lt + 1)  # type: ignore[misc, operator]


def wrong_values(hint: Any) -> list[Any]:
    """What a field must refuse, worked out from its annotation and not by the code that checks it."""
    parts = list(members(hint))
    kinds = {kind for kind, _ in parts}
    wrong: list[Any] = []
    if kinds & {int, float}:
        wrong += [math.nan, math.inf, -math.inf, True, [1]]
        wrong += [value for kind, said in parts if kind in (int, float) for value in outside(said)]
        if str not in kinds:
            wrong += ["1", "abc", ""]
        if type(None) not in kinds:
            wrong.append(None)
        if float not in kinds:
            wrong += [1.5, 1.0]
    elif kinds == {bool}:
        wrong += [0, 1, "true", None, math.nan]
    elif str in kinds:
        wrong += [3, b"x", math.nan, True]
        if not any(get_origin(kind) is tuple for kind in kinds):
            wrong.append(["x"])
    elif any(get_origin(kind) is tuple for kind in kinds):
        wrong += [3, "ab", [math.nan], [object()], {"a": 1}]
    elif all(get_origin(kind) is Literal for kind in kinds - {type(None)}):
        wrong += [3, "no such choice", ["x"]]
    elif any(dataclasses.is_dataclass(kind) for kind in kinds):
        wrong += [3, "ab", {}] if type(None) in kinds else [3, "ab", None, {}]
    return wrong


FIELDS = [
    (cls, each.name, hint)
    for cls in CLASSES
    for hints in [get_type_hints(cls, include_extras=True)]
    for each in dataclasses.fields(cls)
    if each.init
    for hint in [hints[each.name]]
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_field_refuses_what_its_annotation_does(cls: Any) -> None:
    made = cls(**CLASSES[cls])
    assert dataclasses.replace(made) == made  # the defaults are good
    title = getattr(cls, "group", cls.__name__)
    for name, hint in [(name, hint) for of, name, hint in FIELDS if of is cls]:
        for value in wrong_values(hint):
            with pytest.raises(SettingsError) as caught:
                cls(**CLASSES[cls] | {name: value})
            message = str(caught.value)
            assert title in message, (name, value)
            assert f"{name}=" in message, value
            assert "\n" not in message, (name, value)


def test_all_of_them_are_checked() -> None:
    assert {editing.Rome, eval.EvalSettings, locate.CausalTrace, TraceSettings} <= set(CLASSES)
    assert [cls.__name__ for cls in (*CLASSES, Saved) if not is_checked(cls)] == []


def test_numbers_have_a_range_or_may_be_anything() -> None:
    free = {
        f"{cls.__name__}.{name}"
        for cls, name, hint in FIELDS
        for kind, said in members(hint)
        if kind in (int, float) and not said
    }
    layers = {f"{cls.__name__}.layer" for cls, name, _ in FIELDS if name == "layer"}
    scales = {f"{cls.__name__}.factor" for cls, name, _ in FIELDS if name == "factor" and cls.__name__ != "Noise"}
    assert free == layers | scales | {
        "UpdateNeurons.unwrite",
        "UpdateNeurons.write",
        "SwapSettings.early_stop_loss",
        "ValueSettings.early_stop_loss",
    }


def test_rules_of_base_classes_hold_where_a_class_has_none_of_its_own() -> None:
    made = []

    @dataclasses.dataclass(frozen=True)
    @checked
    class Base:
        low: int = 0

        def __post_init__(self) -> None:
            made.append(self.low)

    @dataclasses.dataclass(frozen=True)
    @checked
    class Derived(Base):
        high: int = 1

    Derived(low=3)
    assert made == [3]
    with pytest.raises(SettingsError, match=r"Derived: high='x' must be a whole number"):
        Derived(high="x")  # type: ignore[arg-type]
    assert made == [3]
