"""``corrigenda help editor=NAME``: what an editor is for, where it is from, and each of its settings."""

from __future__ import annotations

from collections.abc import Sequence


def help_on(arguments: Sequence[str]) -> bool:
    """Prints what is asked on an editor.

    Args:
        arguments: of the command line, without the program's name.

    Returns:
        whether this was asked.

    Raises:
        ValueError: there is no such editor.
    """
    if len(arguments) != 2 or arguments[0] != "help" or not arguments[1].startswith("editor="):
        return False
    from rich.console import Console  # seconds to import, as editors are
    from rich.table import Table

    from corrigenda.documented import settings
    from editing.configuration import preset_values
    from editing.registry import EDITORS, declaration, editor_class

    name = arguments[1].removeprefix("editor=")
    editor, own = editor_class(name), preset_values(name)
    said = declaration(editor)
    table = Table("setting", "default", "what it is")
    for setting in settings(editor):
        table.add_row(f"editor.{setting.name}", own.get(setting.name, setting.default), setting.meaning)
    console = Console(markup=False, highlight=False)
    console.print(f"{name}: {said.aim}" if EDITORS.base(name) == name else f"{name}: {said.name} with other settings")
    if said.paper:
        console.print(said.paper)
    console.print(table)
    return True
