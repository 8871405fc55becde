"""Where a model's gate is kept: one that was trained here, or one that comes with the project."""

import logging
import warnings
from importlib.resources import files
from pathlib import Path

from corrigenda.edits.gate import Gate
from corrigenda.language_model import LanguageModel
from corrigenda.system.files import cache_folder
from editing.gate.training import GateTraining

logger = logging.getLogger(__name__)


def kept_gate(lm: LanguageModel) -> Path:
    """Where the gate that was trained for a model is kept."""
    return cache_folder() / "gates" / f"{lm.fingerprint}.safetensors"


def gate_file(lm: LanguageModel) -> Path | None:
    """The file of the gate that was trained for a model, else of the one that ships, else None."""
    ours = Path(str(files("corrigenda.data") / "gates" / f"{lm.fingerprint}.safetensors"))
    return next((path for path in (kept_gate(lm), ours) if path.is_file()), None)


def gate_of(lm: LanguageModel) -> Gate:
    """The gate of a model: the one that was trained for it, else the one that ships, else an untrained one.

    The untrained one takes its mean and its directions of the shipped relations' prompts, which are run once.

    Raises:
        DamagedFileError: the file of the one that was trained is damaged.
    """
    if (path := gate_file(lm)) is not None:
        if path == kept_gate(lm):
            logger.info("%s: the gate that was trained here is taken, %s", lm.name, path)
        return Gate.load(path)
    warnings.warn(
        f"{lm.name} has no trained gate: the cosine of its states decides (corrigenda gate trains one)", stacklevel=2
    )
    with lm.edits.suspended():  # a text that one puts before prompts is no part of them
        return GateTraining(steps=0).gate(lm)
