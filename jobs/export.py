"""``job=export``: writes the model with saved edits as a folder, or edits as an adapter."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Literal

from omegaconf import DictConfig

from corrigenda.edits.export.gguf_adapter import ADAPTER
from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, checked
from corrigenda.system.files import expanded
from corrigenda.system.progress import counted
from jobs.shared.base import say
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.saved_edits import model_of, named_model, read_edits
from jobs.shared.settings import check


@dataclass(frozen=True)
@checked
class ExportSettings:
    """``job=export``: ``corrigenda export FOLDER to=my-model``.

    Attributes:
        to: the new folder.
        edit: as for ``job=ask``; None for the unedited model.
        form: "model", a folder for ``from_pretrained``; "adapter", a LoRA adapter for PEFT; or "gguf-adapter", one for
            llama.cpp and Ollama.
        rank: the largest rank of a layer in a GGUF adapter; None for the edits as they are.
        dtype: the precision of a GGUF adapter.
    """

    group: ClassVar[str] = "job"

    to: str
    edit: str | tuple[str, ...] | None = None
    form: Literal["model", "adapter", "gguf-adapter"] = "model"
    rank: AtLeastOne | None = None
    dtype: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        if not self.to.strip():
            raise SettingsError(f"job.to={self.to!r} must name a folder")
        if self.form == "adapter" and (self.edit is None or not isinstance(self.edit, str)):
            raise SettingsError(f"job.edit={self.edit}: an adapter is made of one edit; name its folder")
        if self.form == "gguf-adapter" and not self.edit:
            raise SettingsError(f"job.edit={self.edit}: name the folders of the edits of which an adapter is made")
        if self.form != "gguf-adapter" and (self.rank, self.dtype) != (None, "float32"):
            raise SettingsError(f"job.form={self.form}: rank and dtype are of form=gguf-adapter; leave them out")


@register("export", ExportSettings, aim="write the edited model, or edits as an adapter")
class Job(StoreJob):
    """Exports edits for those who do not use this project."""

    def run(self, config: DictConfig) -> None:
        """Writes the folder.

        Raises:
            FileExistsError: something is there already.
            TypeError: the kind of edit is no adapter.
            ValueError: an edit is not in the weights, and so not in a model's folder; or as `write_gguf_adapter` says.
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
        if asked.form == "gguf-adapter":
            base = named_model(config, edits)
            errors = edits[0].to_gguf_adapter(folder, *edits[1:], rank=asked.rank, dtype=asked.dtype, base=base)
            shares = ", ".join(f"layer {layer}: {error:.1e}" for layer, error in errors.items())
            say(f"adapter for {base} in {folder}; its error, as a share of the change: {shares}")
            model = shlex.quote(base) if base and base.endswith(".gguf") else "MODEL.gguf"
            say(f"llama-cli -m {model} --lora {shlex.quote(str(folder / ADAPTER))}")
            say(f"ollama create NAME -f {shlex.quote(str(folder / 'Modelfile'))}  # its FROM names the model's file")
            return
        lm = model_of(config, edits)
        with ExitStack() as applied:
            for edit in edits:
                applied.enter_context(edit.applied(lm))
            lm.save_pretrained(folder)
        edited = f"with {counted(len(edits), 'edit')}" if edits else "without an edit"
        say(f"{lm.name} {edited} in {folder}: load({str(folder)!r}) or from_pretrained({str(folder)!r})")
