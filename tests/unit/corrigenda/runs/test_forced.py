from pathlib import Path

from corrigenda.runs.folder import RunFolder
from corrigenda.runs.store import Store

IDENTITY = {"id": "0123456789abcdef", "model_fingerprint": "m", "data_fingerprint": "d", "code": "c"}


def take(root: Path, name: str, force: bool, n: int = 0, finish: bool = False) -> tuple[str, str]:
    """The folder that was taken in hand, or found, and what it was found to be; adds `n` cases to it."""

    def begin() -> RunFolder:
        folder = RunFolder(root / name)
        folder.begin(f"job: {{name: trace}}\nforce: {str(force).lower()}\n")
        return folder

    with Store(root).take(IDENTITY, begin, force) as taken:
        if not isinstance(taken, RunFolder):
            return taken.path.name, taken.state
        for number in range(n):
            taken.append({"id": str(number)})
        if finish:
            taken.finish({"n": 1})
        return taken.path.name, "taken"


def test_a_forced_run_that_was_cut_short_goes_on_by_the_same_command(tmp_path: Path) -> None:
    assert take(tmp_path, "first", force=False) == ("first", "taken")
    assert take(tmp_path, "second", force=True) == ("second", "taken")  # not the first, which was not begun so
    assert take(tmp_path, "third", force=True) == ("second", "taken")


def test_beside_a_finished_run(tmp_path: Path) -> None:
    assert take(tmp_path, "first", force=False, n=1, finish=True) == ("first", "taken")
    assert take(tmp_path, "second", force=True, n=1) == ("second", "taken")
    assert take(tmp_path, "third", force=False) == ("first", "finished")
    assert take(tmp_path, "third", force=True, finish=True) == ("second", "taken")
    assert take(tmp_path, "third", force=True) == ("third", "taken")  # both are finished: once more


def test_beside_a_running_run(tmp_path: Path) -> None:
    def begin() -> RunFolder:
        folder = RunFolder(tmp_path / "first")
        folder.begin("job: {name: trace}\nforce: true\n")
        return folder

    with Store(tmp_path).take(IDENTITY, begin, True) as taken:
        assert isinstance(taken, RunFolder)
        assert take(tmp_path, "second", force=True) == ("first", "running")
