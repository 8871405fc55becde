"""What a stored configuration is trusted with: a run's folder may be a stranger's, and going on does what it says.

The settings classes of this project, its jobs and what is installed as its entry points are made as they stand there.
What would run other code, or send a key away, has to stand in the command, too.
"""

import importlib
import shlex
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from omegaconf import DictConfig, OmegaConf

from corrigenda.runs.sources import PACKAGES
from corrigenda.settings.checked import is_checked
from editing.registry import ENTRY_POINTS as EDITORS
from jobs.shared.job import Job, StoreJob
from jobs.shared.outside import JOBS, LOCATORS
from jobs.shared.words import setting

_ACTING = {
    "plugins": "imports modules",
    "model.trust_remote_code": "runs code that comes with the model",
    "eval.harness_folder": "runs code of the harness's tasks there",
    "eval.real_use.judge.key": "sends what this environment variable holds to the judge's address",
}


def require_trusted(stored: DictConfig, command: DictConfig, asked: str) -> None:
    """Checks that a stored configuration runs nobody's code but this project's and what the command names.

    Raises ValueError: it would; or it names a class that this version does not have.
    """
    there, given = (dict(_leaves("", OmegaConf.to_container(each))) for each in (stored, command))
    known = _acting(given)
    found = {path: said for path, said in _acting(there).items() if path not in known or known[path][0] != said[0]}
    for path, (name, _) in found.items():
        if path.endswith("_target_") and name.partition(".")[0] in PACKAGES and _named(name) is None:
            raise ValueError(
                f"{asked}: {path}={name} in config.yaml there: this version has no such class, so the run was begun by "
                "another one; go on with that version, or begin the run anew"
            )
    if found:
        path, (name, what) = next(iter(found.items()))
        words = " ".join(_typed(path if path in given else f"++{path}", said) for path, (said, _) in found.items())
        raise ValueError(f"{asked}: {path}={name} in config.yaml there {what}; if you trust that run, add {words}")


def _acting(leaves: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """By dotted path, what a configuration, flat, has that is not only this project's settings, and what that does."""
    found: dict[str, tuple[str, str]] = {}
    for path, value in leaves.items():
        if path in _ACTING and value not in (None, False, [], ()):
            found[path] = _listed(value), _ACTING[path]
        named = path == "job.result" or path.rpartition(".")[2] == "_target_"
        if (named and value is not None and not _is_own(path, str(value))) or (
            path == "data.schema" and "." in str(value)
        ):
            found[path] = str(value), "is code from outside this project"
    return found


def _typed(name: str, said: str) -> str:
    return shlex.quote(f"{name}={said}") if name == "plugins" or said == "true" else setting(name, said)


def _listed(value: Any) -> str:
    return "true" if value is True else f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if path == "plugins" or not (value and isinstance(value, (Mapping, list, tuple))):
        yield path, value
        return
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for name, part in items:
        yield from _leaves(f"{path}.{name}".lstrip("."), part)


def _is_own(path: str, name: str) -> bool:
    """Whether a dotted name at a path is that of this project's, of the kind that belongs there, or an entry point."""
    if name.partition(".")[0] not in PACKAGES:
        points = (point for group in (EDITORS, LOCATORS, JOBS) for point in entry_points(group=group))
        return name in (point.value.replace(":", ".") for point in points)
    found = _named(name)
    if not isinstance(found, type) or found.__module__.partition(".")[0] not in PACKAGES:
        return False
    if path == "job.result":  # it is only read
        return hasattr(found, "load")
    return is_checked(found) or issubclass(found, (Job, StoreJob))  # to make one does nothing


def _named(name: str) -> Any:
    """What a dotted name of this project's is; None where there is nothing of the name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None
