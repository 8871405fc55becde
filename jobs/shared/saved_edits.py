"""Saved edits as a command names them: the folder of an edit, or of a run that has one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from corrigenda import Edit, LanguageModel
from corrigenda.errors import WrongModelError
from corrigenda.system.files import expanded
from corrigenda.system.plain_data import read_yaml
from jobs.shared.base import load_model, override_names
from jobs.shared.errors import ROOT
from jobs.shared.job import stored_config
from jobs.shared.trust import require_trusted
from jobs.shared.words import setting


def read_edits(asked: str | tuple[str, ...] | None) -> list[Edit]:
    """The edits that ``job.edit`` names, in order.

    Raises:
        FileNotFoundError: a folder holds no edit.
        ValueError: it holds several, or a damaged one.
    """
    names = () if asked is None else (asked,) if isinstance(asked, str) else asked
    return [Edit.load(_folder(expanded(name))) for name in names]


def _folder(folder: Path) -> Path:
    """The folder of the one edit that lies here, or below ``edits/`` here; the folder ``edits`` itself will do."""
    if (folder / "edit.json").is_file():
        return folder
    if not folder.is_dir():
        what = "this is a file; name the folder of an edit" if folder.is_file() else "there is no such folder"
        raise FileNotFoundError(f"job.edit={folder}: {what}")
    below = ("edits/*/edit.json", "*/edit.json")
    found = [path.parent for pattern in below for path in sorted(folder.glob(pattern))]
    if not found:
        raise FileNotFoundError(f"job.edit={folder}: there is no edit in this folder (no edit.json, no edits/)")
    if len(found) > 1:
        one, some = setting("job.edit", found[0]), setting("job.edit", found[:3])
        raise ValueError(f"job.edit={folder}: there are {len(found)} edits; name one of them, {one}, or a list, {some}")
    return found[0]


def named_model(config: DictConfig, edits: list[Edit]) -> str | None:
    """The name of the model that edits were made on, unless the command line names another one."""
    return edits[0].origin.model if edits and not _is_named() else config.model.name


def model_of(config: DictConfig, edits: list[Edit]) -> LanguageModel:
    """The model of `named_model`, loaded as it was for the first edit's run where the command line says nothing else.

    Raises:
        ValueError: what the run's configuration says of the model would run code that the command line does not name;
            or as `load_model` says.
        WrongModelError: it is not the model that the edits were made on.
    """
    config = config.copy()
    config.model.name = named_model(config, edits)
    if edits and not _is_named():
        asked = config.job.edit
        folder = _folder(expanded(asked if isinstance(asked, str) else asked[0]))
        for key, value in _made_with(folder, edits[0].origin.model, config).items():
            if key in ("dtype", "revision") and f"model.{key}" not in override_names():
                config.model[key] = value
    lm = load_model(config)
    for edit in edits:
        if edit.origin.fingerprint != lm.fingerprint:
            raise WrongModelError(
                f"job.edit: the edit by {edit.origin.editor} was made on {edit.origin.model} with other weights, or in "
                f"another precision, than {lm.name} in {config.model.dtype} has; name what it was made on by model= or "
                "model.name=, model.dtype= and model.revision="
            )
    return lm


def _is_named() -> bool:
    return bool({"model", "model.name"} & set(override_names()))


def _made_with(folder: Path, model: str, config: DictConfig) -> Mapping[str, Any]:
    """How a model was loaded that an edit in a folder was made on: as its run says, else as ``model=`` loads it.

    Raises ValueError: the run's configuration is damaged, or the model would run code.
    """
    within = folder.absolute().parent
    if within.name == "edits" and (run := within.parent / "config.yaml").is_file():
        stored = stored_config(run.parent, f"job.edit={folder}").model
        require_trusted(OmegaConf.create({"model": stored}), config, f"job.edit={folder}")
        found: Mapping[str, Any] = stored
        return found
    own = {path.stem: path for path in (ROOT / "conf" / "model").glob("*.yaml")}
    return read_yaml(own[model]) if model in own else {}
