"""Memory that malloc keeps, on a real heap with holes."""

import platform
from pathlib import Path

import pytest

from corrigenda.system.heap import give_back

PAGE = 4096


def resident() -> int:
    """How many bytes of this process are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_holes_between_what_is_held_go_back_to_the_system() -> None:
    blocks = [bytearray(100_000) for _ in range(2_000)]
    held, full = blocks[::50], resident()
    del blocks
    give_back()
    assert full - resident() > 150_000_000
    assert len(held) == 40


def test_another_libc_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(_: object) -> object:
        return object()

    monkeypatch.setattr("ctypes.CDLL", without)
    give_back()
