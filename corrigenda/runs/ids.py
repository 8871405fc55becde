"""What makes two runs the same run: `run_id`, of all that can change its figures and of nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("corrigenda", "editing", "eval", "locate")

# Not in the identity: where things are kept and who is told, how the work is spread, and what the fingerprints say.
NO_MATTER = frozenset(
    {"add", "before", "choices", "data", "force", "hydra", "logger", "objective", "resume", "save_edits", "store"}
)
NO_MATTER_OF_MODEL = frozenset({"name", "revision", "trust_remote_code"})

# Files that show results but do not make them: a change there makes no run out of date.
NO_FIGURES = (
    "corrigenda/runs/ids.py",
    "corrigenda/intervals.py",
    "corrigenda/runs/locks.py",
    "corrigenda/progress.py",
    "corrigenda/runs/records.py",
    "corrigenda/runs/folder.py",
    "corrigenda/runs/store.py",
    "corrigenda/runs/trackers.py",
    "eval/statistics/comparison.py",
    "eval/leaderboard",
    "eval/statistics/paired.py",
)


def essential(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that can change a run's figures.

    The data group is left out, because the fingerprint of the facts says all of it, and so is the model's name, because
    the fingerprint of the weights does; precision and device stay.
    """
    kept = {key: value for key, value in config.items() if key not in NO_MATTER}
    if isinstance(kept.get("job"), Mapping):
        sequential = kept.get("mode") == "sequential"
        editor = kept["editor"] if isinstance(kept.get("editor"), Mapping) else {}
        located = "auto" in (editor.get("layer"), editor.get("layers"))
        used = {"sequential": sequential, "locality": sequential, "auto_layer": located}
        kept["job"] = {key: value for key, value in kept["job"].items() if used.get(key, True)}
    if isinstance(kept.get("model"), Mapping):
        kept["model"] = {key: value for key, value in kept["model"].items() if key not in NO_MATTER_OF_MODEL}
    return kept


def code_version(root: Path | None = None) -> str:
    """A hash of the files that edit and measure, relative to `root` (by default where this file is installed).

    Of the sources and of the texts that come with them: the held-out text, the unrelated prompts.

    Git is not asked: it is not always there, and does not know of changes that are not committed. Without `root` the
    files are those that were there when this process began: what it runs does not change with them.
    """
    return _version_of(root) if root is not None else _BEGUN_WITH


def _version_of(root: Path) -> str:
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in (".py", ".txt") and not name.startswith(NO_FIGURES):
                digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


_BEGUN_WITH = _version_of(Path(__file__).resolve().parents[2])


def files_named(config: Any) -> str:
    """A hash of the files that a configuration names, and of the edits in the run folders; empty where there is none.

    The same name can stand for other content another time.
    """
    if isinstance(config, Mapping):
        return "".join(files_named(value) for value in config.values())
    if isinstance(config, (list, tuple)):
        return "".join(files_named(value) for value in config)
    if not isinstance(config, str) or not config:
        return ""
    try:
        path = Path(config).expanduser()
        found = [path] if path.is_file() else sorted(path.glob("edits/*/edit.json"))
    except (OSError, RuntimeError):  # a text that is no path, or of nobody's home
        return ""
    if not found:
        return ""
    digest = hashlib.sha256()
    for each in found:
        digest.update(f"{each.parent.name}/{each.name}\0".encode() + each.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def run_id(config: Mapping[str, Any], data_fingerprint: str, model_fingerprint: str, code: str) -> str:
    """The identity of a run: 16 hex digits of the SHA-256 of what matters in its configuration, data, model, code.

    Args:
        config: the resolved configuration, of plain values.
        data_fingerprint: of the facts.
        model_fingerprint: of the weights.
        code: see `code_version`.
    """
    key = [essential(config), data_fingerprint, model_fingerprint, code]
    text = json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
