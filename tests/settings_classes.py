"""The project's settings classes, as the packages have them."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import corrigenda
import editing
import eval as evaluation
import locate
from corrigenda.settings.checked import is_checked
from editing import Saved

NEURONS: dict[str, Any] = {"neurons": ((0, 1),)}
NEEDED: dict[str, dict[str, Any]] = {
    "Guards": {"editor": "x", "flag_norm": 0.5, "refuse_norm": 2.0},
    **dict.fromkeys(("NeuronEditor", "_ScaleNeurons", "Suppress", "Enhance", "EraseNeurons", "UpdateNeurons"), NEURONS),
    "BuildSettings": {"folder": "build"},
    "FactsSettings": {"folder": "build"},
    "AskSettings": {"prompt": "x"},
    "VerifySettings": {"list": "x", "url": "http://localhost/v1"},
    "ExportSettings": {"to": "x"},
}
"""What a class needs to be made, by its name."""


def frozen_dataclasses() -> Iterator[type]:
    """All frozen dataclasses that the packages define."""
    for package in (corrigenda, editing, evaluation, locate, importlib.import_module("jobs")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "lm_eval" in module.name:
                continue
            for value in vars(importlib.import_module(module.name)).values():
                own = isinstance(value, type) and value.__module__ == module.name
                if own and dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen:
                    yield value


def needs_checks(cls: type) -> bool:
    """Whether a class holds settings: by its name, by what it can do, or because it says so itself."""
    does = any(callable(getattr(cls, verb, None)) for verb in ("edit", "find", "extend"))
    return is_checked(cls) or does or cls.__name__.endswith("Settings")


CLASSES = {cls: NEEDED.get(cls.__name__, {}) for cls in frozen_dataclasses() if needs_checks(cls) and cls is not Saved}
"""Each class that can be made of plain values, with what it needs to be made. (`Saved` needs a folder with edits.)"""
