"""Files that are either wholly there or not there at all."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


CHECKSUM = "checksum"
"""The entry of a file's metadata that holds its checksum."""


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


class DamagedFileError(ValueError):
    """A file does not hold what was written to it; the message names it."""


def write_checked(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes tensors as safetensors, atomically, with a checksum of all that is in the file, for `read_checked`."""
    write_tensors(path, tensors, {**metadata, CHECKSUM: _checksum(tensors, metadata)})


def read_checked(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata that `write_checked` wrote.

    Raises:
        DamagedFileError: the file cannot be read, or holds something else.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from error
    if metadata.pop(CHECKSUM, None) != _checksum(tensors, metadata):
        raise DamagedFileError(f"{path} is damaged (its checksum is another)")
    return tensors, metadata


def read_kept(path: Path, then: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """The tensors and the metadata that `write_checked` kept; None where there are none to rely on.

    Args:
        path: of the file, which may be missing. A damaged one is said by a warning.
        then: what is done in that case, for the warning: "it is computed again".
    """
    if not path.is_file():
        return None
    try:
        return read_checked(path)
    except DamagedFileError as error:
        warnings.warn(f"{error}; {then}", stacklevel=3)
        return None


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    import xxhash

    digest = xxhash.xxh3_128(json.dumps(dict(metadata), sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()


def bytes_of(tensor: Tensor) -> Any:
    """The bytes of a tensor as a numpy array, of a tensor on the CPU without a copy."""
    import torch

    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


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


def expanded(path: str | Path) -> Path:
    """A path with the user's home for a ``~`` at its beginning; ``~name`` stays where there is nobody of this name."""
    return Path(os.path.expanduser(path))


def cache_folder() -> Path:
    """Where Corrigenda keeps what it fetched or computed: ``$CORRIGENDA_CACHE``, else the user's cache folder.

    Raises:
        ValueError: the variable names the home of a user that there is not.
    """
    import platformdirs

    asked = os.environ.get("CORRIGENDA_CACHE") or platformdirs.user_cache_dir("corrigenda")
    found = expanded(asked)
    if found.parts[0].startswith("~"):
        raise ValueError(f"CORRIGENDA_CACHE={asked}: there is no user {found.parts[0][1:]!r}; name another folder")
    return found
