import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from corrigenda.runs.folder import RunFolder
from jobs.shared.base import interruptible
from jobs.shared.errors import describe_error, interrupt_on_signals

RUN = Path(__file__).resolve().parents[3] / "run.py"


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)])
def test_a_signal_says_how_to_go_on(request: pytest.FixtureRequest, tmp_path: Path, name: str, status: int) -> None:
    folder = RunFolder(tmp_path / "lr=3, run")
    folder.begin("a: 1\n")
    # Whatever who runs the tests, or another test, has made of the signal, here it is as in a program that begins.
    usual = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
    request.addfinalizer(partial(signal.signal, getattr(signal, name), signal.signal(getattr(signal, name), usual)))
    before = signal.getsignal(getattr(signal, name))
    with pytest.raises(KeyboardInterrupt) as ended, interrupt_on_signals(), interruptible(folder):
        os.kill(os.getpid(), getattr(signal, name))
    said = f"interrupted; what is finished is kept; go on with resume='\"{folder.path}\"'"
    assert describe_error(ended.value, []) == (said, status)
    assert signal.getsignal(getattr(signal, name)) is before


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} {RUN} --help | head -c 1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
    assert done.stdout.strip() in ("0", "141")  # 0: it had written all before the reader went


def test_an_output_that_cannot_encode_shows_escapes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, str(RUN), "resume='東京'"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("resume=\\u6771\\u4eac: there is no run in this folder")


@pytest.mark.parametrize("said", ["can't start new thread", "DefaultCPUAllocator: can't allocate memory: you tried"])
def test_no_room_in_memory_is_one_line(said: str) -> None:
    found = describe_error(RuntimeError(said), [])
    assert found is not None
    assert found[1] == 1
