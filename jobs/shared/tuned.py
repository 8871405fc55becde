"""Models with tuned settings: how ``job=tune`` writes one, and how later runs take it.

A file in ``conf/model`` may have, besides what `corrigenda.load` takes, ``tuned``: by the name that ``editor=`` takes,
the settings that this model gets of it, and the facts on which they were chosen:

    defaults: [own]
    name: path/to/model
    tuned:
      memit:
        target: editing.Memit
        settings: {layers: [3, 4, 5], ratio: 2.5}
        facts: /path/to/facts.jsonl

The command line goes before it. The settings become the editor's own before a run begins, and are in its id.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from corrigenda.errors import SettingsError
from corrigenda.settings.configuration import configuration
from corrigenda.settings.declarations import class_at
from corrigenda.settings.documented import flat
from corrigenda.system.files import expanded, write_text
from corrigenda.system.plain_data import yaml_text, yaml_value
from corrigenda.text.names import model_title
from jobs.shared.job import require_folder

logger = logging.getLogger(__name__)

KEY = "tuned"


def take_tuned(config: DictConfig, choice: str, given: list[str]) -> None:
    """Gives the editor of a new run the settings that its model has for it, and notes on which facts they were tuned.

    ``model.tuned`` is taken out of the configuration; settings that the command line gives stay. Raises SettingsError:
    the model's file says something else than settings.
    """
    if KEY not in config.model:
        return
    tuned: Any = OmegaConf.to_container(config.model[KEY]) or {}
    with open_dict(config):
        del config.model[KEY]
    entry = tuned.get(choice) if isinstance(tuned, dict) else tuned
    if entry is None:
        return
    if not isinstance(entry, dict) or not isinstance(entry.get("settings"), dict):
        raise SettingsError(f"model.{KEY}.{choice} must have the key settings, with the editor's settings by name")
    if entry.get("target", config.editor.get("_target_")) != config.editor.get("_target_"):
        return  # another editor of the same name
    named = [name.removeprefix("editor.") for name in given if name.startswith("editor.")]
    layers_given = bool({"layer", "layers", "depth", "number"} & set(named))
    taken = {}
    for name, value in entry["settings"].items():
        if is_named(name, named) or (name in ("layer", "layers") and layers_given):
            continue
        if OmegaConf.select(config.editor, name, default=KEY) == KEY:
            raise SettingsError(f"model.{KEY}.{choice}.settings: the editor has no setting {name}")
        OmegaConf.update(config.editor, name, value)
        taken[name] = value
    if taken:
        said = ", ".join(f"editor.{name}={value}" for name, value in taken.items())
        logger.info("as tuned for this model: %s", said)
    if entry.get("facts") is not None and taken:
        with open_dict(config):
            config.data.tuned_on = entry["facts"]


def is_named(setting: str, named: Sequence[str]) -> bool:
    """Whether a dotted setting, or a group that it is in, is among those that the command line names."""
    return any(setting == name or setting.startswith(f"{name}.") for name in named)


def own_settings(editor: DictConfig, named: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of an editor that are not its class's defaults, or are named, by dotted name.

    But not who it is, and who works.
    """
    plain: Any = OmegaConf.to_container(editor)
    found = flat({name: value for name, value in plain.items() if name not in ("_target_", "name", "workers", "seed")})
    defaults = flat(configuration(class_at(plain["_target_"])))
    kept = (name for name, value in found.items() if value != defaults.get(name) or is_named(name, named))
    return {name: yaml_value(found[name]) for name in kept}


def tuned_name(asked: str | None, model: str) -> str:
    """The name of a tuned model's file."""
    if asked is not None:
        return asked
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', model_title(model)).strip('-.') or 'model'}-tuned"


def tuned_file(folder: Path, name: str, model: DictConfig) -> Path:
    """Where a tuned model is written.

    Raises FileExistsError: the file there is of another model; NotADirectoryError: the folder is a file.
    """
    require_folder("job.conf", folder)
    path = folder / "model" / f"{name}.yaml"
    if path.is_file():
        of = (yaml_value(path.read_text(encoding="utf-8")) or {}).get("name")
        if of != _lasting_name(model):
            raise FileExistsError(f"{path} is of the model {of}; give job.model= another name")
    return path


def _lasting_name(model: DictConfig) -> str:
    """A model's name that is right in any folder."""
    from corrigenda.models.embedded import EMBEDDED  # seconds to import; goes before a folder of its name

    place = expanded(str(model.name))
    return str(place.resolve() if place.exists() and str(model.name) not in EMBEDDED else model.name)


def write_tuned(
    folder: Path,
    name: str,
    model: DictConfig,
    editor: DictConfig,
    choice: str,
    settings: Mapping[str, Any],
    facts: Path,
    told: str,
    named: Sequence[str] = (),
) -> Path:
    """Writes a tuned model into a folder for ``--config-dir``, and gives the file; what it has for other editors stays.

    Of the run are the groups ``model`` and ``editor``, beside whose own settings the others were found: these are
    written, too, with those that the command line `named`. `told` says how, for a comment. Raises FileExistsError: the
    file is of another model.
    """
    path = tuned_file(folder, name, model)
    found: dict[str, Any] = {"defaults": ["own", "_self_"]}
    plain: Any = OmegaConf.to_container(model)
    kept = {key: plain[key] for key in ("dtype", "revision", "trust_remote_code") if key in plain}  # not this machine's
    found |= kept | {"name": _lasting_name(model), KEY: {}}
    comments: list[str] = []
    if path.is_file():
        text = path.read_text(encoding="utf-8")
        found[KEY] |= (yaml_value(text) or {}).get(KEY) or {}
        comments = [line for line in text.splitlines()[1:] if line.startswith("# editor=")]
    found[KEY][choice] = {
        "target": editor.get("_target_"),
        "settings": own_settings(editor, named) | dict(settings),
        "facts": str(facts.resolve()),
    }
    comments = [line for line in comments if not line.startswith(f"# editor={choice}:")]
    head = [
        f"# Made by job=tune. A run takes it by --config-dir {folder} model={name}",
        *comments,
        f"# editor={choice}: {' '.join(told.split())}",
    ]
    write_text(path, "\n".join(head) + "\n" + yaml_text(found))
    return path
