"""`How`: who solves the facts of a knowledge base, and who compiles them, by a name or by an editor.

::

    way = how_named("memit")                     # or alphaedit, emmet, rome, ...; or attached, scoped
    kb.solve(lm, way.solver)
    edit = kb.compile(lm, way.compiler)

ROME for several facts is EMMET with equality (Gupta et al. 2024), and stands here as that.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corrigenda.errors import SettingsError
from corrigenda.knowledge.entries import Compiler
from corrigenda.text.names import did_you_mean
from editing.knowledge.merging import ClosedFormMerge, ScopedMerge
from editing.knowledge.solving import EntrySolver
from editing.locate_then_edit.closed_form import ClosedForm
from editing.locate_then_edit.emmet import Emmet
from editing.locate_then_edit.rome import Rome
from editing.memory_based.scoped import Scoped
from editing.registry import EDITORS, presets

BESIDE: Mapping[str, str] = {"attached": "corrigenda.knowledge.attached.Attached"}
"""The ways that change no weight: by name, the dotted path of the compiler."""

SOLVES_BESIDE = Emmet
"""Whose keys and targets they answer with, where no editor is named: one layer, and what its network shall give."""


@dataclass(frozen=True)
class How:
    """A way to put a knowledge base to use, by its name: what solves the facts, and what makes the edit."""

    name: str
    solver: EntrySolver
    compiler: Compiler


def how_named(name: str, editor: Any = None) -> How:
    """The way of a name: of an editor that can fold a list into the weights, or of one beside them (`BESIDE`).

    For the latter the editor solves, by default `SOLVES_BESIDE`. Raises SettingsError: no way has this name; or the
    editor has a setting that no list can have; ValueError: what the name stands for is not installed.
    """
    if name in BESIDE:
        solver = _solver(SOLVES_BESIDE() if editor is None else editor)
        module, _, attribute = BESIDE[name].rpartition(".")
        try:
            compiler: Compiler = getattr(importlib.import_module(module), attribute)()
        except ModuleNotFoundError as error:
            raise ValueError(f"how={name}: {error}") from error
        return How(name, solver, compiler)
    known = ways()
    if name not in known:
        hint = did_you_mean(name, known)
        also = f"; {name} is an editor with settings of its own: name it by editor={name}" if name in presets() else ""
        raise SettingsError(
            f"how={name}: there is no such way to put a list to use{also}; {hint}{' ' * bool(hint)}"
            f"The ways are {', '.join(known)}"
        )
    return how_of(EDITORS[name]())


def how_of(editor: Any) -> How:
    """The way of an editor with its settings: its entries, folded into the weights or, of `Scoped`, beside them.

    Raises:
        SettingsError: the editor cannot keep a list, or has a setting that no list can have.
    """
    solver = _solver(editor)
    merge = ScopedMerge(solver.editor) if isinstance(solver.editor, Scoped) else ClosedFormMerge(solver.editor)
    return How(solver.editor.name, solver, merge)


def ways() -> tuple[str, ...]:
    """The names that `how_named` takes."""
    own = [name for name in EDITORS.declared if name == "rome" or issubclass(EDITORS[name], ClosedForm | Scoped)]
    return (*own, *BESIDE)


def _solver(editor: Any) -> EntrySolver:
    if isinstance(editor, Rome):
        if editor.position != "subject":
            raise SettingsError(
                f"editor=rome: position={editor.position} is for edits, and a list keeps keys at the subject's last "
                "token; take position=subject"
            )
        default = Rome()
        no_use = {
            "ridge": default.ridge,
            "homogeneous_keys": True,
            "bare_agreement": 0.0,
            "flag_norm": default.flag_norm,
        }
        for name, none in no_use.items():
            if (value := getattr(editor, name)) not in (none, getattr(default, name)):
                raise SettingsError(
                    f"editor=rome: {name}={value} is for edits, and a list has one key for each fact, by the default "
                    "rule; leave it out"
                )
        shared = ("prefix_lengths", "prefixes", "frames", "value", "text", "tokens_per_coefficient", "seed")
        own = {name: getattr(editor, name) for name in shared}
        layers = () if editor.layer is None else (editor.layer,)
        editor = Emmet(name="rome", layers=layers, depth=editor.depth, eps=0.0, refuse_norm=editor.refuse_norm, **own)
    if isinstance(editor, Scoped):
        return EntrySolver(editor)
    if not isinstance(editor, ClosedForm):
        name = getattr(editor, "name", type(editor).__name__)
        raise SettingsError(f"editor={name} cannot keep a list of facts; the ways to do that are {', '.join(ways())}")
    if editor.after.norm_anchor:
        raise SettingsError(
            f"editor={editor.name}: after.norm_anchor=True takes its norm from the facts that came first, and a list "
            "has no order; leave it out"
        )
    if editor.rule == "replay":
        raise SettingsError(
            f"editor={editor.name}: rule=replay gives each layer what it lacks behind those below it, and the entries "
            "of a list are solved on the unedited model; take rule=even"
        )
    if editor.rounds > 1:
        raise SettingsError(
            f"editor={editor.name}: with rounds={editor.rounds} targets are solved for again on the edited model, and "
            "the entries of a list are solved on the unedited one; take rounds=1"
        )
    return EntrySolver(editor)
