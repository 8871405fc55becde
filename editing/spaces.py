"""What is worth tuning of each editor: its layers, and the two or three settings that matter, with their ranges.

An editor of this project has one entry in `SPACES`. One from outside has a class attribute ``space``. The tuning itself
is ``job=tune``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from editing.registry import EDITORS


@dataclass(frozen=True)
class Number:
    """A setting that is a number.

    Attributes:
        setting: its name; ``value.kl_factor`` is a field of the field ``value``.
        low: the least value; None for what its annotation allows.
        high: the largest value; None for what its annotation allows.
        log: whether factors matter, and not differences.
        after_targets: whether solved targets do not depend on it, so that a trial of it alone takes them from the disk.
    """

    setting: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    after_targets: bool = False

    def bounds(self, cls: type) -> tuple[float, float]:
        """The least and the largest value for a class of editors.

        Raises:
            TypeError: neither the number nor the annotation has one of them.
        """
        low, high = annotated_bounds(cls, self.setting)
        low, high = low if self.low is None else self.low, high if self.high is None else self.high
        if low is None or high is None:
            raise TypeError(f"{cls.__name__}.{self.setting}: its annotation has no range; give low and high")
        return low, high


@dataclass(frozen=True)
class Space:
    """What is tuned of an editor.

    Attributes:
        layers: how it names its layers: "one", by the field ``layer``; "several", by ``layers``: those up to a last
            one, ``number`` of them.
        numbers: its settings that matter, the most telling first.
    """

    layers: Literal["one", "several"]
    numbers: tuple[Number, ...]


_CLAMP = Number("value.clamp_norm_factor", 0.4, 8.0, log=True)
_RATIO = Number("ratio", 0.05, 30.0, log=True, after_targets=True)

SPACES: Mapping[str, Space] = {
    "alphaedit": Space(
        "several",
        (
            Number("energy", 0.01, 0.5, log=True, after_targets=True),
            Number("ratio", 0.01, 10.0, log=True, after_targets=True),
            _CLAMP,
        ),
    ),
    "crispedit": Space("one", (Number("gamma", 0.5, 0.99), Number("lr", 1e-4, 1e-2, log=True))),
    "emmet": Space("several", (Number("eps", 1e-3, 3.0, log=True, after_targets=True), _CLAMP)),
    "finetune": Space("one", (Number("lr", 1e-4, 1e-2, log=True), Number("stop", 0.005, 0.5, log=True))),
    "grace": Space("one", (Number("relative_radius", 0.05, 2.0, log=True),)),
    "memit": Space("several", (_RATIO, _CLAMP)),
    "rome": Space("one", (_CLAMP, Number("value.kl_factor", 0.01, 1.0, log=True))),
    "shift": Space("one", (Number("strength", 0.1, 3.0, log=True),)),
    "ultraedit": Space("several", (Number("step", 0.03, 1.0, log=True), Number("ratio", 0.005, 0.5, log=True))),
    "wise_whitened": Space("one", (Number("margin", 0.4), Number("weight", 1.0, 30.0, log=True))),
}
"""By the editor's name in `editing.registry.CLASSES`. A preset has its class's entry, and its own values to begin
with."""

UNTUNED: Mapping[str, str] = {
    "enhance": "acts on neurons that are named or found",
    "erase_neurons": "acts on neurons that are named or found",
    "in_context": "has no number, and changes no weight",
    "none": "does nothing",
    "random": "is a control",
    "saved": "makes no edit",
    "suppress": "acts on neurons that are named or found",
    "update_neurons": "acts on neurons that are named or found",
}
"""The editors without an entry, and why."""


def space_of(editor: Any) -> Space:
    """What is tuned of an editor.

    Raises:
        ValueError: nothing is declared for it.
    """
    own = getattr(type(editor), "space", None)
    if isinstance(own, Space):
        return own
    by_class = {EDITORS[name]: space for name, space in SPACES.items()}
    for cls in type(editor).__mro__:  # what derives from an editor has its entry
        if cls in by_class:
            return by_class[cls]
    raise ValueError(
        f"{type(editor).__name__}: it is not declared what is tuned of this editor; give its class an attribute "
        f"space = editing.spaces.Space(...), or take one of {', '.join(SPACES)}"
    )


def annotated_bounds(cls: type, setting: str) -> tuple[float | None, float | None]:
    """The range that a setting's annotation gives; None for an end that it leaves open (or, as "above 0", excludes).

    Args:
        cls: a settings class.
        setting: a dotted name.

    Raises:
        AttributeError: the class has no such setting.
    """
    name, _, rest = setting.partition(".")
    hints = get_type_hints(cls, include_extras=True)
    if name not in {field.name for field in dataclasses.fields(cls)}:
        raise AttributeError(f"{cls.__name__} has no setting {name}")
    if rest:
        nested: Any = next(hint for hint in _parts(hints[name]) if dataclasses.is_dataclass(hint))
        return annotated_bounds(nested, rest)
    marks = [mark for hint in _parts(hints[name]) for mark in getattr(hint, "__metadata__", ())]
    low = [float(mark.ge) for mark in marks if isinstance(mark, Ge)]  # type: ignore[arg-type]
    high = [float(mark.le) for mark in marks if isinstance(mark, Le)]  # type: ignore[arg-type]
    return (None if any(isinstance(mark, Gt) for mark in marks) else max(low, default=None)), (
        None if any(isinstance(mark, Lt) for mark in marks) else min(high, default=None)
    )


def _parts(hint: Any) -> list[Any]:
    """An annotation, or the members of a union."""
    if hasattr(hint, "__metadata__"):
        return [hint]
    return [part for each in get_args(hint) for part in _parts(each)] or [hint]
