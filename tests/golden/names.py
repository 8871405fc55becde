"""Golden values of what users write down: public names, and the resolved configuration of every command."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from composed import CONF
from golden.made import configured

import corrigenda
import editing
import eval as evaluation
import jobs.shared.words
import locate
from corrigenda.edits.edit import Edit
from editing.baselines.saved import KINDS
from editing.registry import EDITORS, classes, presets
from eval.metrics import METRICS
from jobs.shared.outside import CLASSES
from jobs.shared.registry import classes as job_classes

GROUPS = ("editor", "job", "data", "eval", "logger", "model")
NEEDED = {"saved": ["editor.run=RUN"]}


def names(folder: Path) -> Any:
    for module in KINDS:
        importlib.import_module(module)
    packages = {module.__name__: module for module in (corrigenda, editing, locate, evaluation)}
    chosen = {
        group.name: sorted(path.stem for path in group.glob("*.yaml")) for group in CONF.iterdir() if group.is_dir()
    }
    chosen["job"] = sorted(job_classes())
    chosen |= {group: sorted({*chosen[group], *(n for g, n in CLASSES if g == group)}) for group in ("eval", "locate")}
    return {
        "exports": {name: dict.fromkeys(sorted(module.__all__), True) for name, module in packages.items()},
        "editors": {name: EDITORS[name].__name__ for name in classes()},
        "presets": dict(presets()),
        "kinds of edits": dict.fromkeys(sorted(Edit.kinds), True),
        "metrics": dict.fromkeys(METRICS, True),
        "jobs' own settings": {job: list(own) for job, own in jobs.shared.words.OWN.items()},
        "configurations": {group: dict.fromkeys(chosen[group], True) for group in sorted(chosen) if chosen[group]},
    }


def configuration(folder: Path) -> Any:
    """What ``--cfg job --resolve`` says: of the bare command all, of every other choice what is otherwise there."""
    files = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in GROUPS}
    files |= {"editor": list(EDITORS), "job": list(job_classes()), "eval": ["full", *files["eval"]]}
    choices = [(group, name) for group, names in files.items() for name in names]
    commands = [[f"{group}={name}", *NEEDED.get(name, [])] for group, name in choices]
    whole, *others = map(flat, configured([[], *commands]))
    found: dict[str, Any] = {"corrigenda": {f"{key} =": value for key, value in whole.items()}}
    for command, mine in zip(commands, others, strict=True):
        other = {f"{key} =": value for key, value in mine.items() if key not in whole or whole[key] != value}
        gone = {f"{key} =": "gone" for key in whole if key not in mine}
        found[command[0]] = other | gone
    return found


def flat(config: Any, key: str = "") -> dict[str, Any]:
    """The settings by dotted key; lists stand as they are written."""
    if not isinstance(config, dict) or not config:
        return {key: repr(config)}
    parts = [flat(part, f"{key}.{name}" if key else str(name)) for name, part in config.items()]
    return {name: value for part in parts for name, value in part.items()}


MAKERS: dict[str, Callable[[Path], Any]] = {"names": names, "configuration": configuration}
