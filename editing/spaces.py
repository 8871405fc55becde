"""What is worth tuning of an editor: its layers, and the two or three settings that matter, with their ranges.

Each editor declares its own (`editing.registry.register`). The tuning itself is ``job=tune``.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from annotated_types import Ge, Gt, Le, Lt


@dataclass(frozen=True)
class Number:
    """A setting that is a number.

    Attributes:
        setting: its name; ``value.kl_factor`` is a field of the field ``value``.
        low: the least value; None for what its annotation allows.
        high: the largest value; None for what its annotation allows.
        log: whether factors matter, and not differences.
        after_targets: whether solved targets do not depend on it, so that a trial of it alone takes them from the disk.
        only: another setting and a value: where that setting has another value, this one is not tuned.
    """

    setting: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    after_targets: bool = False
    only: tuple[str, object] | None = None

    def matters(self, editor: object) -> bool:
        """Whether it is tuned of an editor, by the editor's other settings."""
        return self.only is None or getattr(editor, self.only[0]) == self.only[1]

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
            one, ``number`` of them; "none": it has none.
        numbers: its settings that matter, the most telling first.
    """

    layers: Literal["one", "several", "none"]
    numbers: tuple[Number, ...]


CLAMP = Number("value.clamp_norm_factor", 0.4, 8.0, log=True)
"""How far a target may lie from where it begins: all that solve for targets have it."""


def annotated_bounds(cls: type, setting: str) -> tuple[float | None, float | None]:
    """The range that a setting's annotation gives; None for an end that it leaves open (or, as "above 0", excludes).

    Raises AttributeError: the class has no setting of this dotted name.
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
