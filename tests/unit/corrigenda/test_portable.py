"""What runs on one system only is imported where it is used, so that an import breaks nowhere."""

import ast
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
WINDOWS_ONLY = {"msvcrt", "winreg", "_winapi"}


def imported_at_once(source: str) -> Iterator[str]:
    """The modules that a file imports when it is imported itself."""
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            nodes += ast.iter_child_nodes(node)


@pytest.mark.parametrize("package", ["corrigenda", "locate", "editing", "eval", "jobs", "hydra_plugins", "benchmarks"])
def test_no_file_needs_one_system_to_be_imported(package: str) -> None:
    files = [*(ROOT / package).rglob("*.py")]
    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imported_at_once(path.read_text(encoding="utf-8"))
        if name in POSIX_ONLY | WINDOWS_ONLY
    }
    assert not found


def test_the_check_itself() -> None:
    source = "import fcntl\nclass A:\n    import resource\ndef f():\n    import pwd\n"
    assert set(imported_at_once(source)) == {"fcntl", "resource"}


@pytest.mark.skipif(sys.platform == "win32", reason="compares with the POSIX call")
def test_peak_memory_is_what_the_system_says() -> None:
    import resource

    import torch

    from corrigenda.runs.environment import peak_memory_mb

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        pytest.skip("counts the memory of the GPU")
    unit = 2**20 if sys.platform == "darwin" else 1024
    assert peak_memory_mb() == pytest.approx(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, rel=0.05)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="told on Linux and Windows alone")
def test_memory_that_is_held_now() -> None:
    import torch

    from corrigenda.runs.environment import memory_mb, peak_memory_mb

    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        pytest.skip("counts the memory of the GPU")
    piece = b"1" * 2**20
    before = memory_mb()
    block = mmap.mmap(-1, 128 * 2**20)  # of the system itself: what an allocator gives may have been held before
    for _ in range(128):
        block.write(piece)
    during = memory_mb()
    block.close()
    after = memory_mb()
    assert during - before == pytest.approx(128, abs=16)
    assert after < during - 64
    assert peak_memory_mb() > during - 1
