"""The names that `editor=` takes, and the class behind each.

This file is light: names are listed without importing an editor, and a class is imported when it is asked for.

An editor of this project has one line in `CLASSES`, and one configuration, ``conf/editor/NAME.yaml``. A preset is a
further configuration of the same class, with one line in `PRESETS`. An editor from outside is made known by `register`,
or by an installed package's entry point in the group ``corrigenda.editors``. For the command line its configuration is
enough: ``hydra.searchpath=[file:///a/folder]`` with the file ``editor/NAME.yaml`` there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar, overload

from corrigenda.nearest import did_you_mean

if TYPE_CHECKING:
    from editing.editor import Editor

CLASSES: Mapping[str, str] = {
    "alphaedit": "editing.AlphaEdit",
    "crispedit": "editing.CrispEdit",
    "emmet": "editing.Emmet",
    "enhance": "editing.Enhance",
    "erase_neurons": "editing.EraseNeurons",
    "finetune": "editing.FineTune",
    "grace": "editing.Grace",
    "in_context": "editing.InContext",
    "memit": "editing.Memit",
    "none": "editing.NoEdit",
    "random": "editing.RandomUpdate",
    "rome": "editing.Rome",
    "saved": "editing.Saved",
    "shift": "editing.Shift",
    "suppress": "editing.Suppress",
    "ultraedit": "editing.UltraEdit",
    "update_neurons": "editing.UpdateNeurons",
    "wise_whitened": "editing.Wise",
}
"""The editors of this project: the dotted path of each one's class."""

PRESETS: Mapping[str, str] = {
    "alphaedit_blue": "alphaedit",
    "ft_l": "finetune",
    "ft_m": "finetune",  # with its very settings: another name
    "grace_wide": "grace",
    "memit_blue": "memit",
    "memit_plain": "memit",
    "memit_rounds": "memit",
    "pmet": "memit",
    "r_rome": "rome",  # with its very settings: the name under which users look for it
    "wise_paper": "wise_whitened",
    "wise_whitened_merge": "wise_whitened",
    "wise_whitened_retrieve": "wise_whitened",
}
"""Configurations of other settings: by name, whose."""

FORMER: Mapping[str, tuple[str, str]] = {
    name: (
        f"wise_whitened{name.removeprefix('wise')} (this project's variant, which {name} was)",
        "wise_paper (the algorithm of Wang et al. 2024)",
    )
    for name in ("wise", "wise_merge", "wise_retrieve")
}
"""Names that stood for something that is called otherwise now: what they may be meant to say."""

ENTRY_POINTS = "corrigenda.editors"
"""The group of entry points in which installed packages name their editors."""

E = TypeVar("E", bound="type[Editor]")


class Registry(Mapping[str, "type[Editor]"]):
    """Classes of editors by name; a class is imported when it is asked for.

    Args:
        classes: dotted paths of classes by name.
        presets: further names, each with the name that it is a preset of.
    """

    def __init__(self, classes: Mapping[str, str], presets: Mapping[str, str]) -> None:
        self._found: dict[str, str | type[Editor]] = dict(classes)
        self._presets = dict(presets)
        self._looked = False

    def __getitem__(self, name: str) -> type[Editor]:
        target = self._targets()[self.base(name)]
        if not isinstance(target, str):
            return target
        module, _, attribute = target.rpartition(".")
        found: type[Editor] = getattr(importlib.import_module(module), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._targets(), *self._presets}))

    def __len__(self) -> int:
        return len(self._targets()) + len(self._presets)

    def __contains__(self, name: object) -> bool:
        return name in self._targets() or name in self._presets

    def base(self, name: str) -> str:
        """The name whose preset this is; the name itself, if it is none."""
        return self._presets.get(name, name)

    @overload
    def register(self, name: str) -> Callable[[E], E]: ...

    @overload
    def register(self, name: str, editor: E) -> E: ...

    def register(self, name: str, editor: E | None = None) -> E | Callable[[E], E]:
        """Makes an editor from outside known: ``register("name", Class)``, or ``@register("name")`` above the class.

        Raises:
            TypeError: what is named has no method ``edit``.
            ValueError: the name stands for another editor.
        """
        if editor is None:
            return lambda decorated: self.register(name, decorated)
        if not callable(getattr(editor, "edit", None)):
            raise TypeError(f"editor {name!r}: {editor!r} has no method edit(lm, facts)")
        if name in self and self[name] is not editor:
            raise ValueError(f"editor {name!r} is registered already, as {self[name].__qualname__}; take another name")
        self._found[name] = editor
        return editor

    def unknown(self, name: str) -> str:
        """What to answer to a name that no editor has: what it may be meant to say, and all names there are."""
        said = FORMER.get(name)
        hint = did_you_mean(name, self, cutoff=0.5) if said is None else f"say which: {' or '.join(said)}."
        return f"editor={name}: there is no such editor; {hint}{' ' * bool(hint)}The editors are {', '.join(self)}"

    def _targets(self) -> Mapping[str, str | type[Editor]]:
        """What is known, with the editors of installed packages; these are looked for once, and never hide ours."""
        if not self._looked:
            self._looked = True
            for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
                self._found.setdefault(point.name, point.value.replace(":", "."))
        return self._found


EDITORS = Registry(CLASSES, PRESETS)
"""Editors by the name that `editor=` takes on the command line."""

register = EDITORS.register


def editor_class(name: str) -> type[Editor]:
    """The class of the editor that a name stands for.

    Raises:
        ValueError: there is no such editor; says which names are nearest.
    """
    if name not in EDITORS:
        raise ValueError(EDITORS.unknown(name))
    return EDITORS[name]
