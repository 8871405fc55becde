"""The configuration of an editor, which follows from its dataclass: every setting, with its default."""

from typing import Any

import yaml

from corrigenda.settings.configuration import configuration as of_class
from corrigenda.settings.documented import flat
from editing.registry import EDITORS, PRESETS, declaration, presets


def configuration(name: str) -> dict[str, Any]:
    """What ``editor=NAME`` stands for, as Hydra reads it; no preset."""
    cls = EDITORS[name]
    return of_class(cls, declaration(cls).choices)


def preset_values(name: str) -> dict[str, str]:
    """What a preset's file gives, by dotted name, as the file has it; nothing of an editor that is no preset."""
    path = PRESETS / f"{name}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8")) if name in presets() else {}
    return {key: value for key, value in flat(content).items() if key != "defaults"}
