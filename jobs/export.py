"""``job=export``: writes the model with saved edits as a folder or a GGUF file, or edits as an adapter."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from omegaconf import DictConfig

from corrigenda import Edit, LanguageModel, LowRankEdit
from corrigenda.edits.edit import all_applied
from corrigenda.edits.export.gguf_adapter import ADAPTER
from corrigenda.edits.ties import How
from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, ShareAboveZero, checked
from corrigenda.system.files import expanded
from corrigenda.system.progress import counted, stage
from jobs.shared.base import say
from jobs.shared.job import StoreJob
from jobs.shared.registry import register
from jobs.shared.saved_edits import model_of, named_model, read_edits
from jobs.shared.settings import check

TYPES = {"gguf-adapter": ("float32", "float16"), "gguf": ("float16", "q8_0", "former")}
"""By form what `dtype` may be."""


@dataclass(frozen=True)
@checked
class ExportSettings:
    """``job=export``: ``corrigenda export FOLDER to=my-model``.

    Attributes:
        to: the new folder; of "gguf" the new file.
        edit: as for ``job=ask``; None for the unedited model.
        form: "model", a folder for ``from_pretrained``; "adapter", a LoRA adapter for PEFT; "gguf-adapter", one for
            llama.cpp and Ollama; or "gguf", the model's own GGUF file with the edited tensors in it.
        rank: the largest rank of a layer in a GGUF adapter; None for the edits as they are.
        merge: how several low-rank edits are made one by TIES before anything is written, "ties_svd" or "ties"
            (`LowRankEdit.merged`); None for edits that are stacked.
        density: the share of each edit's entries that is kept where they are merged.
        dtype: of a GGUF adapter float32 (by default) or float16; of the edited tensors of a GGUF file float16, q8_0 or
            former (their former type); by default q8_0, or the former type where that is as fine.
    """

    group: ClassVar[str] = "job"

    to: str
    edit: str | tuple[str, ...] | None = None
    form: Literal["model", "adapter", "gguf-adapter", "gguf"] = "model"
    rank: AtLeastOne | None = None
    dtype: Literal["float32", "float16", "q8_0", "former"] | None = None
    merge: How | None = None
    density: ShareAboveZero = 0.5

    def __post_init__(self) -> None:
        if not self.to.strip():
            raise SettingsError(f"job.to={self.to!r} must name a folder, or of form=gguf a file")
        if self.merge is not None and (not isinstance(self.edit, tuple) or len(self.edit) < 2):
            raise SettingsError(f"job.edit={self.edit}: job.merge={self.merge} merges edits; name two folders or more")
        if self.merge is None and self.density != type(self).density:
            raise SettingsError(f"job.density={self.density}: it is for job.merge=ties_svd or ties; leave it out")
        if self.form == "adapter" and self.merge is None and not isinstance(self.edit, str):
            raise SettingsError(
                f"job.edit={self.edit}: an adapter is made of one edit; name its folder, or merge several by "
                "job.merge=ties_svd"
            )
        if self.form in TYPES and not self.edit:
            raise SettingsError(f"job.edit={self.edit}: name the folders of the edits that go into a GGUF file")
        if self.form != "gguf-adapter" and self.rank is not None:
            raise SettingsError(f"job.form={self.form}: rank is of form=gguf-adapter; leave it out")
        if self.dtype not in (None, *(known := TYPES.get(self.form, ()))):
            takes = f"takes {' or '.join(known)}" if known else "takes none; leave it out"
            raise SettingsError(f"job.dtype={self.dtype}: form={self.form} {takes}")


@register("export", ExportSettings, aim="write the edited model, or edits as an adapter")
class Job(StoreJob):
    """Exports edits for those who do not use this project."""

    def run(self, config: DictConfig) -> None:
        """Writes the folder, or the file.

        Raises:
            FileExistsError: something is there already.
            TypeError: the kind of edit has no such form, or cannot be merged.
            ValueError: an edit is neither in the weights nor added neurons, and so not in a model's folder; or as
                `Edit.to_gguf_adapter` and `Edit.to_gguf` say.
        """
        asked = check(ExportSettings, config.job)
        place = expanded(asked.to)
        if place.is_file() or (place.is_dir() and any(place.iterdir())):
            raise FileExistsError(f"job.to={asked.to}: there is something already; name a new place")
        edits: list[Edit] = read_edits(asked.edit)
        if asked.merge is not None:
            edits = [LowRankEdit.merged(edits, density=asked.density, how=asked.merge)]
        if asked.form == "adapter":
            edits[0].to_peft(place)
            say(f"adapter for {edits[0].origin.model} in {place}: PeftModel.from_pretrained(base, {str(place)!r})")
        elif asked.form == "gguf-adapter":
            _write_gguf_adapter(asked, place, named_model(config, edits), edits)
        elif asked.form == "gguf":
            _write_gguf(asked, place, named_model(config, edits), edits)
        else:
            _write_model(place, model_of(config, edits), edits)


def _write_model(place: Path, lm: LanguageModel, edits: Sequence[Edit]) -> None:
    with all_applied(edits, lm):
        lm.save_pretrained(place)
    edited = f"with {counted(len(edits), 'edit')}" if edits else "without an edit"
    say(f"{lm.name} {edited} in {place}: load({str(place)!r}) or from_pretrained({str(place)!r})")


def _write_gguf_adapter(asked: ExportSettings, place: Path, base: str | None, edits: Sequence[Edit]) -> None:
    dtype: Any = asked.dtype or "float32"
    errors = edits[0].to_gguf_adapter(place, *edits[1:], rank=asked.rank, dtype=dtype, base=base)
    shares = ", ".join(f"layer {layer}: {error:.1e}" for layer, error in errors.items())
    say(f"adapter for {base} in {place}; its error, as a share of the change: {shares}")
    model = shlex.quote(base) if base and base.endswith(".gguf") else "MODEL.gguf"
    say(f"llama-cli -m {model} --lora {shlex.quote(str(place / ADAPTER))}")
    say(f"ollama create NAME -f {shlex.quote(str(place / 'Modelfile'))}  # its FROM names the model's file")


def _write_gguf(asked: ExportSettings, place: Path, base: str | None, edits: Sequence[Edit]) -> None:
    dtype: Any = asked.dtype
    with stage(f"Writing {place}"):
        kinds = edits[0].to_gguf(place, *edits[1:], dtype=dtype, base=base)
    said = ", ".join(f"layer {layer}: {kind}" for layer, kind in kinds.items())
    say(f"{base} with {counted(len(edits), 'edit')} in {place}; the edited tensors: {said}; all others as they were")
    say(f"llama-cli -m {shlex.quote(str(place))}")
