"""Saved edits as a command names them: the folder of an edit, or of a run that has one."""

from pathlib import Path

from omegaconf import DictConfig

from corrigenda import Edit, LanguageModel
from corrigenda.system.files import expanded
from jobs.shared.base import load_model, override_names
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
    if edits and not {"model", "model.name"} & set(override_names()):
        return edits[0].origin.model
    return config.model.name


def model_of(config: DictConfig, edits: list[Edit]) -> LanguageModel:
    """The model of `named_model`. Raises ValueError: as `load_model` says."""
    config = config.copy()
    config.model.name = named_model(config, edits)
    return load_model(config)
