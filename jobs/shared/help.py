"""``corrigenda help editor=NAME``, ``help job=NAME``, ``help eval=NAME``: what it is for, and each of its settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from corrigenda.settings.declarations import class_at
from corrigenda.settings.documented import Setting, as_yaml, flat, meanings, settings
from corrigenda.system.plain_data import read_yaml
from corrigenda.text.names import alternatives
from jobs.shared.outside import CLASSES

CONF = Path(__file__).parents[2] / "conf"


@dataclass(frozen=True)
class Help:
    """What is said of a choice: lines above the table, and the settings with their full dotted names."""

    head: tuple[str, ...]
    settings: tuple[Setting, ...]


def help_on(arguments: Sequence[str]) -> bool:
    """Prints what is asked on an editor, a job, or what is measured; gives whether this was asked.

    Raises ValueError: there is none of that name.
    """
    if len(arguments) != 2 or arguments[0] != "help":
        return False
    group, _, name = arguments[1].partition("=")
    if group not in _HELP:
        return False
    from rich.console import Console  # a second to import
    from rich.table import Column, Table

    said = _HELP[group](name)
    names = Column("setting", min_width=max((len(each.name) for each in said.settings), default=0))  # never cut
    table = Table(names, "default", "what it is")
    for setting in said.settings:
        table.add_row(*setting)
    console = Console(markup=False, highlight=False)
    for line in said.head:
        console.print(line)
    console.print(table)
    return True


def _editor(name: str) -> Help:
    from editing.configuration import preset_values  # seconds to import, as editors are
    from editing.registry import EDITORS, declaration, editor_class

    editor, own = editor_class(name), preset_values(name)
    said = declaration(editor)
    head = f"{name}: {said.aim}" if EDITORS.base(name) == name else f"{name}: {said.name} with other settings"
    rows = (Setting(f"editor.{each.name}", own.get(each.name, each.default), each.meaning) for each in settings(editor))
    return Help(tuple(filter(None, (head, said.paper))), tuple(rows))


def _job(name: str) -> Help:
    from jobs.shared.job import require_job
    from jobs.shared.registry import declaration

    require_job("job", name)
    said = declaration(name)
    return Help((f"{name}: {said.aim}",), tuple(map(_seeded, _settings_of(said))))


def _eval(name: str) -> Help:
    from eval import EvalSettings, RealUse  # seconds to import

    presets = {path.stem: path for path in sorted((CONF / "eval").glob("*.yaml"))}
    if name not in {"full", *presets}:
        known = alternatives(name, sorted(("full", *presets)), "choices")
        raise ValueError(f"eval={name}: there is no such choice; {known}")
    own = {} if name == "full" else flat(read_yaml(presets[name]))
    rows = [each._replace(default=own.get(each.name, each.default)) for each in settings(EvalSettings)]
    if name == "real_use":
        place = next(number for number, each in enumerate(rows) if each.name == "real_use")
        rows[place : place + 1] = [rows[place]._replace(default=""), *settings(RealUse, "real_use.")]
    head = "every metric that the facts' prompts allow"
    if name != "full":  # the first comment says it
        head = presets[name].read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    prefixed = (each._replace(name=f"eval.{each.name}") for each in rows)
    return Help((f"{name}: {head}",), tuple(_seeded(e) if e.name == "eval.seed" else e for e in prefixed))


def _settings_of(job: Any) -> Iterator[Setting]:
    """A job's own settings, with the run's in place of some defaults, and those of its parts."""
    for each in settings(job.settings, "job."):
        of_run = job.run.get(each.name.removeprefix("job."))
        yield each if of_run is None else each._replace(default=f"${{{of_run}}}")
    for place, part in job.parts.items():
        if is_dataclass(part):
            yield from settings(part, f"job.{place}.")
        elif part == {"_target_": "???"}:
            yield Setting(f"job.{place}._target_", "to be given", meanings(job.settings).get(place, ""))
    for place, choice in job.choices.items():
        yield from _chosen(f"job.{place}", choice)
    for key, value in job.beside.items():
        yield Setting(key, as_yaml(value), "")


def _seeded(setting: Setting) -> Setting:
    """Every seed of a job is the run's."""
    return setting._replace(default="${seed}") if setting.name.endswith(".seed") else setting


def _chosen(place: str, choice: str) -> Iterator[Setting]:
    """The settings of another group's choice: those of its class, or of the class whose preset it is."""
    group, _, name = choice.strip("/").partition(": ")
    preset = CONF / group / f"{name}.yaml"
    given: Mapping[str, Any] = read_yaml(preset) if preset.is_file() else {}
    [base] = given.get("defaults", [name])
    own = flat(given)
    for each in settings(class_at(CLASSES[group, base])):
        yield Setting(f"{place}.{each.name}", own.get(each.name, each.default), each.meaning)


_HELP = {"editor": _editor, "job": _job, "eval": _eval}
