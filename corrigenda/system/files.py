"""Files that are either wholly there or not there at all."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corrigenda.errors import DamagedFileError

if TYPE_CHECKING:
    from torch import Tensor


CHECKSUM, IDENTITY = "checksum", "of"
"""The entries of a file's metadata that hold its checksum, and what it is of."""


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically; its folder is made if need be."""
    write_file(path, lambda scratch: scratch.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, atomically. NaN and infinities are refused (ValueError): they are not JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, replaces: Path | None = None
) -> None:
    """Writes tensors as safetensors, atomically; first the file that described those there, `replaces`, is removed."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write(scratch: Path) -> None:
        # An empty dictionary of metadata would make an unreadable file where there are no tensors.
        save_file(plain, scratch, dict(metadata) if metadata else None)
        if replaces is not None:
            replaces.unlink(missing_ok=True)

    write_file(path, write)


def write_checked(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes tensors as safetensors, atomically, with what they are of and a checksum of all that, for `read_checked`.

    What a file is of (which model, layer, text or fact) says its name, with the name of its folder: of two files that
    are not of the same, the names have to differ.
    """
    said = {**metadata, IDENTITY: _identity(path)}
    write_tensors(path, tensors, {**said, CHECKSUM: _checksum(tensors, said)})


def read_checked(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata that `write_checked` wrote.

    Raises:
        DamagedFileError: the file cannot be read, holds something else, or was written as another file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            # Copied, since a file's tensors lie at any address, and products of such may differ in the last bit.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from error
    if metadata.pop(CHECKSUM, None) != _checksum(tensors, metadata):
        raise DamagedFileError(f"{path} is damaged (its checksum is another)")
    of = metadata.pop(IDENTITY, None)
    if of != _identity(path):
        raise DamagedFileError(f"{path} is in the place of another file (it was written as {of})")
    return tensors, metadata


def _identity(path: Path) -> str:
    path = path.absolute()
    return f"{path.parent.name}/{path.name}"


def read_kept(path: Path, then: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """The tensors and the metadata that `write_checked` kept; None where there are none to rely on.

    A damaged file, or another in its place, is said by a warning, with what is done `then`: "it is computed again".
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


CONTENTS = "contents.json"
"""The file of a folder that says what the others have to be."""


def write_contents(folder: Path, of: str) -> None:
    """Writes down what is in a folder, and what it is of, for `problem_of_contents`."""
    write_json(folder / CONTENTS, {"of": of, "files": {path.name: _digest(path) for path in sorted(folder.iterdir())}})


def problem_of_contents(folder: Path, of: str) -> str:
    """In what a folder is not what was written down of it; empty where it is. Further files in it do not count."""
    path = folder / CONTENTS
    if not path.is_file():
        return f"it has no {CONTENTS}"
    try:
        said = json.loads(path.read_bytes())
        if said["of"] != of:
            return f"it is of something else ({said['of']!s:.60})"
        wrong = sorted(name for name, digest in said["files"].items() if _digest(folder / name) != digest)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return f"{CONTENTS} is damaged ({error})"
    return f"damaged ({', '.join(wrong[:3])})" if wrong else ""


def _digest(path: Path) -> str:
    """A hash of a file; empty where there is none."""
    import xxhash

    return digest_of(path, xxhash.xxh3_128()) if path.is_file() else ""


def digest_of(path: Path, digest: Any = None) -> str:
    """The digest of a file, in hexadecimal: its SHA-256, or by a fresh one of `xxhash`; read piece by piece."""
    digest = digest or hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return str(digest.hexdigest())


def bytes_of(tensor: Tensor) -> Any:
    """The bytes of a tensor as a numpy array, of a tensor on the CPU without a copy."""
    import torch

    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file atomically: `write` writes it under another name, in the same folder, which is made if need be.

    What killed writers left there under such names is removed.
    """
    with saying_full(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_scratch(path.parent)
        try:
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=scratch_prefix(path.name))
        except OSError as error:
            error.filename = str(path)  # which the user knows, and not the other name
            raise
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
        except BaseException as error:
            scratch.unlink(missing_ok=True)
            if isinstance(error, OSError) and str(error.filename) == name:
                error.filename = str(path)
            raise


@contextmanager
def saying_full(path: Path) -> Iterator[None]:
    """Where the disk is full while a file is written, one error says so, and what could not be written.

    Libraries that write for us have errors of their own for that, and programs that run for us only their words. Raises
    OSError: there is no space left, or no more is allowed.
    """
    try:
        yield
    except Exception as error:
        full = getattr(error, "errno", None) in _FULL or any(words in str(error) for words in _FULL_IN_WORDS)
        if not full or getattr(error, "strerror", None) == FULL:
            raise
        raise OSError(errno.ENOSPC, FULL, str(path)) from error


FULL = "no space left on the disk; make room and give the same command again"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_IN_WORDS = ("(os error 28)", "No space left on device")


def scratch_prefix(name: str) -> str:
    """How the name of a scratch file, or folder, begins; it says which process writes it."""
    return f".{name}.{_here()}-{os.getpid()}."


def remove_scratch(folder: Path) -> None:
    """Removes the scratch files and folders of processes of this machine that are gone; never those of a live one.

    Those of other machines are removed a day after they were last written. A folder is looked through at most so often
    that it takes a twentieth of the time.
    """
    begin = time.monotonic()
    if begin < _LOOK_AGAIN.get(folder, 0.0):
        return
    with suppress(OSError):  # somebody else removes it, or may and this process may not
        for entry in os.scandir(folder):
            found = _SCRATCH.fullmatch(entry.name)
            if found is None or _writes(found[1], int(found[2]), entry):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)
    _LOOK_AGAIN[folder] = time.monotonic() + 20 * (time.monotonic() - begin)


_SCRATCH = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)\.\w{8}")
_LOOK_AGAIN: dict[Path, float] = {}
"""By folder, when it is looked through again."""
_DAY = 24 * 3600.0


def _writes(machine: str, process: int, entry: os.DirEntry[str]) -> bool:
    """Whether a process may still be at work on a scratch file."""
    if machine != _here() or sys.platform == "win32":  # there a process cannot be asked whether it lives
        return time.time() - entry.stat(follow_symlinks=False).st_mtime < _DAY
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's
        return True
    return True


@functools.cache
def _here() -> str:
    """Where process ids are told apart: this machine, or this container on it."""
    space = Path("/proc/self/ns/pid")
    known = f"{platform.node()} {os.readlink(space) if space.is_symlink() else ''}"
    return hashlib.sha256(known.encode()).hexdigest()[:8]


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
