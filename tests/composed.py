"""Configurations as the command line composes them."""

import copy
import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import CachingConfigRepository
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra.plugins.config_source import ConfigResult

from editing.registry import EDITORS
from jobs.shared import outside
from jobs.shared.registry import classes

CONF = Path(__file__).parents[1] / "conf"

_load = ImportlibResourcesConfigSource.load_config
_added: list[Any] = []


@cache
def _shipped(path: str, provider: str, file: str) -> ConfigResult:
    return _load(ImportlibResourcesConfigSource(provider, f"pkg://{path}"), file)


def _read(self: ImportlibResourcesConfigSource, config_path: str) -> ConfigResult:
    found = _shipped(self.path, self.provider, config_path)
    return replace(found, config=copy.deepcopy(found.config))  # some commands write into it


def _share(self: CachingConfigRepository, delegate: Any) -> None:
    self.delegate, self.cache = delegate, {}


def add_choices(names_alone: bool = False) -> None:
    """`add_choices` of the program, where there are others than at the last call."""
    found = [names_alone, [*EDITORS.declared], [*classes()], [*sys.path], importlib.metadata.entry_points]
    if found != _added:
        outside.add_choices(names_alone)
        _added[:] = found


@contextmanager
def read_once() -> Iterator[None]:
    """In the block what ships is read once in this process: Hydra reads the files and copies all choices each time."""
    with (
        patch.object(CachingConfigRepository, "__init__", _share),
        patch.object(ImportlibResourcesConfigSource, "load_config", _read),
    ):
        yield


def composed(*overrides: str) -> Any:
    """The configuration of these arguments."""
    add_choices()
    with read_once(), initialize_config_module("conf", version_base="1.3"):
        return compose("config", list(overrides))
