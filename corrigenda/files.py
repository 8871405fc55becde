"""Files that are either wholly there or not there at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically; its folder is made if need be."""
    write_file(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, atomically. NaN and infinities are refused (ValueError): they are not JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors as safetensors, atomically."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # An empty dictionary of metadata would make an unreadable file where there are no tensors.
    write_file(path, lambda scratch: save_file(plain, scratch, dict(metadata) if metadata else None))


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file atomically: `write` writes it under another name, in the same folder, which is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    scratch = Path(name)
    try:
        write(scratch)
        with scratch.open("r+b") as file:  # Windows flushes only what is open for writing
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        scratch.chmod(0o666 & ~umask)  # mkstemp's files are private; what it becomes should be an ordinary file
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def cache_folder() -> Path:
    """Where Corrigenda keeps what it fetched or computed: ``$CORRIGENDA_CACHE``, else the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("CORRIGENDA_CACHE") or platformdirs.user_cache_dir("corrigenda")).expanduser()
