"""``job=export``: writes the model with saved edits as a folder, or an edit as an adapter."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Literal

from omegaconf import DictConfig

from corrigenda.errors import SettingsError
from corrigenda.settings.checked import checked
from corrigenda.system.files import expanded
from corrigenda.system.progress import counted
from jobs.shared.base import say
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.saved_edits import model_of, read_edits
from jobs.shared.settings import check


@dataclass(frozen=True)
@checked
class ExportSettings:
    """``job=export``: ``corrigenda export FOLDER to=my-model``.

    Attributes:
        to: the new folder.
        edit: as for ``job=ask``; None for the unedited model.
        form: "model", a folder for ``from_pretrained``; or "adapter", a LoRA adapter for PEFT.
    """

    group: ClassVar[str] = "job"

    to: str
    edit: str | tuple[str, ...] | None = None
    form: Literal["model", "adapter"] = "model"

    def __post_init__(self) -> None:
        if not self.to.strip():
            raise SettingsError(f"job.to={self.to!r} must name a folder")
        if self.form == "adapter" and (self.edit is None or not isinstance(self.edit, str)):
            raise SettingsError(f"job.edit={self.edit}: an adapter is made of one edit; name its folder")


@register("export", ExportSettings, aim="write the edited model, or the edit as an adapter")
class Job(StoreJob):
    """Exports edits for those who do not use this project."""

    def run(self, config: DictConfig) -> None:
        """Writes the folder.

        Raises:
            FileExistsError: something is there already.
            TypeError: the kind of edit is no adapter.
            ValueError: an edit is not in the weights, and so not in a model's folder.
        """
        asked = check(ExportSettings, config.job)
        folder = expanded(asked.to)
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise FileExistsError(f"job.to={asked.to}: there is something already; name a new folder")
        edits = read_edits(asked.edit)
        if asked.form == "adapter":
            edits[0].to_peft(folder)
            say(f"adapter for {edits[0].origin.model} in {folder}: PeftModel.from_pretrained(base, {str(folder)!r})")
            return
        lm = model_of(config, edits)
        with ExitStack() as applied:
            for edit in edits:
                applied.enter_context(edit.applied(lm))
            lm.save_pretrained(folder)
        edited = f"with {counted(len(edits), 'edit')}" if edits else "without an edit"
        say(f"{lm.name} {edited} in {folder}: load({str(folder)!r}) or from_pretrained({str(folder)!r})")
