"""What the tests of the leaderboard share."""

from pathlib import Path
from typing import Any

import pytest
from made_runs import runs_in

from corrigenda.runs.store import Store
from eval.leaderboard import leaderboard, write_leaderboard
from eval.leaderboard.boards import Board


def only_board(tmp_path: Path, **options: Any) -> Board:
    [board] = leaderboard(Store(tmp_path / "outputs").runs(), **options).boards
    return board


def times(*parts: tuple[bool, int]) -> list[bool]:
    return [value for value, number in parts for _ in range(number)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A leaderboard with two tables, in board/ beside the runs."""
    place = tmp_path_factory.mktemp("written")
    make_run = runs_in(place)
    make_run("rome", times((True, 36), (False, 4)), times((True, 30), (False, 10)))
    make_run("memit", times((True, 38), (False, 2)), times((True, 36), (False, 4)))
    make_run("wise", times((True, 12), (False, 28)))
    make_run("in_context", [True] * 40, times((True, 8), (False, 32)))
    make_run("none", [False] * 40)
    for editor, rate in (("rome", 30), ("memit", 38)):
        make_run(editor, times((True, rate), (False, 40 - rate)), mode="sequential", curve=True)
    (place / "outputs" / "rome-0-0-single" / "trace.png").write_bytes(b"\x89PNG")
    write_leaderboard(leaderboard(Store(place / "outputs").runs()), place / "board", about="Made by a test.")
    return place / "board"
