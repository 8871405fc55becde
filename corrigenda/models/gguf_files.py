"""GGUF files: each is converted once, into a folder in the cache that is read in seconds, and found by its content."""

import hashlib
import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from corrigenda.errors import DamagedModelError, ModelNotFoundError
from corrigenda.models.condition import refuse_incomplete
from corrigenda.models.gguf_rows import complete_config, complete_tokenizer, rows_of
from corrigenda.models.packed import pack, write
from corrigenda.system.files import (
    cache_folder,
    digest_of,
    problem_of_contents,
    remove_scratch,
    saying_full,
    scratch_prefix,
    write_contents,
    write_json,
)

logger = logging.getLogger(__name__)

READING = 5
"""How a file is read; what was converted in another way is converted anew."""
PIECE = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
"""How llama.cpp names the files of a model that is split."""


def converted(path: Path) -> Path:
    """The folder for `load` of a GGUF file, made the first time.

    It is found by the file's SHA-256; of a file that has the size and the times of the last time, that is known.

    Raises:
        ModelNotFoundError: there is no such file.
        DamagedModelError: it is no GGUF file, or one piece of several.
        UnsupportedModelError: it has something that transformers passes over.
    """
    if not path.is_file():
        raise ModelNotFoundError(f"there is no GGUF file {path}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise DamagedModelError(f"{path} is no GGUF file (it does not begin with 'GGUF'); fetch it again")
    if piece := PIECE.search(path.name):
        first = PIECE.sub(f"-00001-of-{piece[2]}.gguf", path.name)
        raise DamagedModelError(
            f"{path} is piece {int(piece[1])} of {int(piece[2])}: join them first, with llama.cpp's "
            f"`llama-gguf-split --merge {first} {PIECE.sub('.gguf', path.name)}`"
        )
    return folder_of(_digest(path), path.stem, lambda _scratch: path)


def folder_of(sha256: str, label: str, gguf_file: Callable[[Path], Path]) -> Path:
    """The folder for `load` of the GGUF file with this hash: configuration and tokenizer, and weights of `packed`.

    It has to hold what was made of that file, or is made again, of the file that `gguf_file` gives. It appears under
    its name, which begins with `label`, only when it is complete, so that an interruption leaves nothing half-written.
    Of two processes one waits for the other.
    """
    parent = cache_folder() / "models"
    parent.mkdir(parents=True, exist_ok=True)
    made_of = f"{sha256} by reading {READING}"
    with FileLock(parent / f".{sha256[:12]}.lock"):
        folder = next(parent.glob(f"*-{sha256[:12]}"), parent / f"{label}-{sha256[:12]}")
        problem = problem_of_contents(folder, made_of)
        if folder.is_dir() and not problem:
            return folder
        remove_scratch(parent)
        prefix = scratch_prefix(label)
        with tempfile.TemporaryDirectory(dir=parent, prefix=prefix, ignore_cleanup_errors=True) as scratch:
            if folder.is_dir():
                warnings.warn(f"{folder}: {problem}; the model is prepared again", stacklevel=2)
                os.replace(folder, Path(scratch) / "earlier")  # who reads it now goes on with the files that are open
            with saying_full(folder):
                path = gguf_file(Path(scratch))
                logger.info("converting %s (%.1f GB, this once)", path.name, path.stat().st_size / 1e9)
                ready = Path(scratch) / "ready"
                convert(path, ready)
                write_contents(ready, made_of)
            os.replace(ready, folder)
        logger.info("kept in %s; to be rid of it, remove the folder", folder)
        return folder


def convert(gguf_file: Path, folder: Path) -> None:
    """Writes a GGUF model as a folder for `load`: of the same bits as its de-quantised float32, and packed.

    Raises:
        DamagedModelError: it is cut short or damaged, or it lacks weights.
        Exception: what transformers raises where it cannot read it.
    """
    from transformers import AutoTokenizer  # seconds to import

    from corrigenda.models.gguf_reader import LeanReader

    model, weights = _read(gguf_file)
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    complete_tokenizer(LeanReader(gguf_file), tokenizer)
    _forget_quantisation(model)
    folder.mkdir(parents=True)
    model.config.architectures = [type(model).__name__]  # as its own `save_pretrained` says it
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    if weights is None:
        pack(gguf_file, model, folder)
    else:
        write(folder, *weights)
    tokenizer.save_pretrained(folder)


def _read(gguf_file: Path) -> tuple[Any, tuple[dict[str, Any], dict[str, str]] | None]:
    """A GGUF file's model without weights, and these as of `rows_of`; where there are none, the model with them.

    Raises:
        DamagedModelError: it is cut short or damaged, or it lacks weights.
        UnsupportedModelError: it has something that transformers passes over.
        Exception: what transformers raises where it cannot read it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from corrigenda.models.gguf_reader import LeanReader

    try:
        config = AutoConfig.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
        reader = LeanReader(gguf_file)
        complete_config(reader, config)
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        weights = rows_of(reader, empty)
        if weights is not None:
            return empty, weights
        options: dict[str, Any] = {"gguf_file": gguf_file.name, "config": config, "dtype": torch.float32}
        options["output_loading_info"] = True
        loaded: Any = AutoModelForCausalLM.from_pretrained(gguf_file.parent, **options)
    except Exception as error:
        if problem := _problem(gguf_file):
            raise DamagedModelError(f"{gguf_file} is cut short or damaged ({problem}); fetch it again") from error
        raise
    model, loading = loaded
    refuse_incomplete(gguf_file, model, loading)
    return model, None


def _problem(gguf_file: Path) -> str:
    """What is wrong with the form of a GGUF file; empty where all its parts are there."""
    from gguf import GGUFReader

    try:
        GGUFReader(gguf_file)
    except Exception as error:  # of many kinds, by where the file is damaged
        return " ".join(str(error).split())[:200]
    return ""


def _forget_quantisation(model: torch.nn.Module) -> None:
    """Takes off a GGUF model what says that it is quantised: its weights are ordinary ones once read."""
    config: Any = model.config
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config


def _digest(path: Path) -> str:
    """The SHA-256 of a file; it is not read again while its size, its times and its place on the disk are the same."""
    state = path.stat()
    place = str(path.resolve())
    stamp = [place, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
    note = cache_folder() / "models" / "gguf" / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"
    try:
        known = json.loads(note.read_bytes())
        if known["stamp"] == stamp:
            return str(known["sha256"])
    except (OSError, ValueError, LookupError, TypeError):
        pass  # not looked at yet
    found = digest_of(path)
    write_json(note, {"stamp": stamp, "sha256": found})
    return found
