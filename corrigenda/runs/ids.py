"""What makes two runs the same run: `run_id`, of all that can change its figures and of nothing else."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from corrigenda.runs.sources import Sources
from corrigenda.system.files import expanded

# Not in the id: where things are kept and who is told, how the work is spread, and what the fingerprints say.
NO_MATTER = frozenset(
    {
        "add",
        "before",
        "choices",
        "data",
        "force",
        "hydra",
        "logger",
        "objective",
        "plugins",
        "resume",
        "save_edits",
        "store",
        "workers",
    }
)
NO_MATTER_OF_MODEL = frozenset({"name", "revision", "trust_remote_code"})


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
        used = {"sequential": sequential, "locality": sequential, "auto_layer": located, "most_failures": False}
        kept["job"] = {key: value for key, value in kept["job"].items() if used.get(key, True)}
    if isinstance(kept.get("editor"), Mapping):
        kept["editor"] = {key: value for key, value in kept["editor"].items() if key != "workers"}
    if isinstance(kept.get("model"), Mapping):
        kept["model"] = {key: value for key, value in kept["model"].items() if key not in NO_MATTER_OF_MODEL}
    return kept


_BEGUN_WITH = Sources(Path(__file__).resolve().parents[2])


def code_version(root: Path | None = None, entry: Iterable[str] = ()) -> str:
    """A hash of the files that edit and measure, and of the texts that come with them (see `Sources`).

    Of the files of what `entry` names and of all that these use; without any, of all files of the project that make
    figures. By default they are those of the installation when this process began: what it runs does not change with
    them. Git is not asked: it is not always there, and does not know of changes that are not committed.
    """
    return (_BEGUN_WITH if root is None else Sources(root)).version(entry)


def targets(config: Any) -> tuple[str, ...]:
    """The classes that a configuration names (``_target_``), at any depth: what `code_version` takes as `entry`."""
    found: set[str] = set()
    if isinstance(config, Mapping):
        found |= {str(config["_target_"])} if "_target_" in config else set()
        found.update(*map(targets, config.values()))
    elif isinstance(config, (list, tuple)):
        found.update(*map(targets, config))
    return tuple(sorted(found))


HELD = (".json", ".jsonl", ".csv", ".tsv", ".safetensors")
"""What files of facts and of models end with."""


def files_named(config: Any) -> str:
    """A hash of the files that a configuration names, and of what the folders hold; empty where there is none.

    Of a run's folder its edits count, of another the facts or the model right in it. The same name can stand for other
    content another time.
    """
    if isinstance(config, Mapping):
        return "".join(files_named(value) for value in config.values())
    if isinstance(config, (list, tuple)):
        return "".join(files_named(value) for value in config)
    if not isinstance(config, str) or not config:
        return ""
    try:
        path = expanded(config)
        found = [path] if path.is_file() else sorted(path.glob("edits/*/edit.json"))
        if not found and path.is_dir():
            found = sorted(each for each in path.iterdir() if each.suffix in HELD)
    except (OSError, RuntimeError):  # a text that is no path, or of nobody's home
        return ""
    if not found:
        return ""
    digest = hashlib.sha256()
    for each in found:
        digest.update(f"{each.parent.name}/{each.name}\0".encode() + each.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def run_id(config: Mapping[str, Any], data_fingerprint: str, model_fingerprint: str, code: str) -> str:
    """The identity of a run: 16 hex digits of the SHA-256 of what matters in its configuration, data, model, code."""
    key = [essential(config), data_fingerprint, model_fingerprint, code]
    text = json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
