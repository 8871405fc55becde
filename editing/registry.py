"""The names that `editor=` takes, and how an editor makes itself known.

    @register("memit", paper="Meng et al. 2023 ...", aim="many facts ...", space=Space("several", (...)))
    @dataclass(frozen=True)
    class Memit: ...

The registry, the configuration (`editing.configuration`), what `job=tune` searches and the pages of methods follow from
this. A preset is a file of other settings, ``conf/editor/NAME.yaml``, that begins with the editor's name in its
``defaults``. An installed package names its editors as entry points in the group ``corrigenda.editors``. This file is
light: names are listed without importing an editor.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from corrigenda.settings.declarations import class_at, declared_classes
from corrigenda.text.names import alternatives
from editing.spaces import Space

if TYPE_CHECKING:
    from editing.editor import Editor

ENTRY_POINTS = "corrigenda.editors"
"""The group of entry points in which installed packages name their editors."""
HERE = Path(__file__).parent
PRESETS = HERE.parent / "conf" / "editor"

E = TypeVar("E", bound="type[Editor]")


@dataclass(frozen=True)
class EditorDeclaration:
    """What an editor says of itself.

    Attributes:
        name: as `editor=` takes it.
        paper: where it is published; empty for this project's own.
        aim: what it is for, in a line.
        space: what of it is worth tuning; or why nothing is.
        unranked: why it is not in the leaderboard; empty where it is.
        choices: fields of the configuration that are another group's choice, as ``{"find": "/locate: neurons"}``.
    """

    name: str
    paper: str = ""
    aim: str = ""
    space: Space | str = "it is not declared what is tuned of it"
    unranked: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)


class EditorRegistry(Mapping[str, "type[Editor]"]):
    """Classes of editors by name; a class is imported when it is asked for."""

    def __init__(self) -> None:
        self._found: dict[str, str | type[Editor]] = {}
        self._looked = False

    def __getitem__(self, name: str) -> type[Editor]:
        target = self._targets()[self.base(name)]
        return class_at(target) if isinstance(target, str) else target

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._targets(), *presets()}))

    def __len__(self) -> int:
        return len({*self._targets(), *presets()})

    def __contains__(self, name: object) -> bool:
        return name in self._targets() or name in presets()

    def base(self, name: str) -> str:
        """The name whose preset this is; the name itself, if it is none."""
        return presets().get(name, name)

    @property
    def declared(self) -> tuple[str, ...]:
        """The names of this project's editors, without presets."""
        return tuple(sorted(classes()))

    def add(self, name: str, editor: type[Editor]) -> None:
        """Makes a class known by a name.

        Raises:
            TypeError: what is named has no method ``edit``.
            ValueError: the name stands for another editor.
        """
        if not callable(getattr(editor, "edit", None)):
            raise TypeError(f"editor {name!r}: {editor!r} has no method edit(lm, facts)")
        path = f"{editor.__module__}.{editor.__qualname__}"
        if name in self and classes().get(name) != path and self[name] is not editor:
            raise ValueError(f"editor {name!r} is registered already, as {self[name].__qualname__}; take another name")
        self._found[name] = editor

    def unknown(self, name: str) -> str:
        """What to answer to a name that no editor has: what it may be meant to say, and all names there are."""
        return f"editor={name}: there is no such editor; {alternatives(name, self, 'editors', cutoff=0.5)}"

    def _targets(self) -> Mapping[str, str | type[Editor]]:
        """What is known, with the editors of installed packages; these are looked for once, and never hide ours."""
        if not self._looked:
            self._looked = True
            self._found = {**classes(), **self._found}
            for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
                self._found.setdefault(point.name, point.value.replace(":", "."))
        return self._found


@cache
def classes() -> Mapping[str, str]:
    """The dotted path of each editor's class, read from the declarations without importing them."""
    return declared_classes(HERE.parent, HERE.rglob("*.py"))


@cache
def presets() -> Mapping[str, str]:
    """The editor that each preset begins with."""
    begins = re.compile(r"^defaults:\n  - (\w+)$", re.MULTILINE)
    found = {path.stem: begins.search(path.read_text(encoding="utf-8")) for path in sorted(PRESETS.glob("*.yaml"))}
    return {name: match[1] for name, match in found.items() if match}


EDITORS = EditorRegistry()
"""Editors by the name that `editor=` takes on the command line."""


def register(
    name: str,
    *,
    paper: str = "",
    aim: str = "",
    space: Space | str = "it is not declared what is tuned of it",
    unranked: str = "",
    choices: Mapping[str, str] | None = None,
) -> Callable[[E], E]:
    """Declares an editor: ``@register("name", ...)`` above its class. `EditorDeclaration` says what can be given.

    Raises:
        TypeError: what is named has no method ``edit``.
        ValueError: the name stands for another editor.
    """

    def declare(cls: E) -> E:
        EDITORS.add(name, cls)
        declared: Any = cls
        declared.declaration = EditorDeclaration(name, paper, aim, space, unranked, choices or {})
        return cls

    return declare


def declaration(editor: type) -> EditorDeclaration:
    """What a class, or one that it derives from, says of itself."""
    found: EditorDeclaration = getattr(editor, "declaration", EditorDeclaration(editor.__name__))
    return found


def space_of(editor: object) -> Space:
    """What is tuned of an editor. Raises ValueError: nothing is declared for it; says why, or how to declare it."""
    declared = declaration(type(editor))
    if isinstance(declared.space, Space):
        return declared.space
    raise ValueError(
        f"editor={declared.name} cannot be tuned: {declared.space}; give its register(...) a space, or take one of "
        f"{', '.join(name for name in EDITORS.declared if isinstance(declaration(EDITORS[name]).space, Space))}"
    )


def editor_class(name: str) -> type[Editor]:
    """The class of the editor that a name stands for.

    Raises:
        ValueError: there is no such editor; says which names are nearest.
    """
    if name not in EDITORS:
        raise ValueError(EDITORS.unknown(name))
    return EDITORS[name]
