import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder_parts import begun, record, summary, unexpected

import corrigenda
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.store import Store, StoredRun


def test_a_process_runs_the_code_it_began_with(tmp_path: Path) -> None:
    shutil.copytree(Path(corrigenda.__file__).parent, tmp_path / "corrigenda", ignore=shutil.ignore_patterns("__pyc*"))
    program = (
        "import pathlib, corrigenda.runs.ids as i\n"
        "root = pathlib.Path(i.__file__).parents[2]\n"
        "def change(name): path = root / name; path.write_text(path.read_text() + '# changed')\n"
        "at_first = i.code_version(root, ['corrigenda.facts'])\n"
        "first = i.code_version(); change('corrigenda/models/memory.py')\n"
        "assert i.code_version() == first != i.code_version(root)\n"
        "change('corrigenda/facts.py')\n"  # read already, for the version of all files
        "assert i.code_version(entry=['corrigenda.facts']) == at_first != i.code_version(root, ['corrigenda.facts'])"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"PYTHONPATH": "."}, check=True)


def test_digests_are_those_of_sha256sum(tmp_path: Path) -> None:
    folder = begun(tmp_path, {"id": "1"}, 2)
    folder.append(record(0), "retention")
    folder.finish(summary(2))
    tool = shutil.which("sha256sum")
    if tool is None:
        pytest.skip("needs the command sha256sum")
    command, env = [tool, "--check", "records.sha256"], os.environ | {"LC_ALL": "C"}  # "OK" is of the language
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "cases.jsonl: OK\nretention.jsonl: OK\n")


HOLD = """
import sys, time
from corrigenda.runs.folder import RunFolder
with RunFolder(sys.argv[1]).held():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes the run in tmp_path/outputs/run."""
    begun(tmp_path / "outputs" / "run", {"id": "1"}, 2)
    command = [sys.executable, "-c", HOLD, str(tmp_path / "outputs" / "run")]
    root = Path(__file__).parents[4]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_live_writer_is_left_alone_and_a_killed_one_is_succeeded(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    store = Store(tmp_path / "outputs")
    assert [(run.state, run.done) for run in store.runs()] == [("running", 2)]
    with store.take({"id": "1"}, unexpected) as taken:
        assert isinstance(taken, StoredRun)
        assert taken.state == "running"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert [run.state for run in store.runs()] == ["unfinished"]
    with store.take({"id": "1"}, unexpected) as taken:
        assert isinstance(taken, RunFolder)
        assert [run.state for run in store.runs()] == ["running"]
        assert len(list(taken.cases())) == 2
    assert [run.state for run in store.runs()] == ["unfinished"]


TAKE = """
import sys, time
from pathlib import Path
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.store import Store, StoredRun
root, name = Path(sys.argv[1]), sys.argv[2]
def begin():
    time.sleep(0.3)  # long enough for all the others to look
    folder = RunFolder(root / name)
    folder.begin("seed: 0")
    return folder
sys.stdin.readline()
with Store(root).take({"id": "1"}, begin) as taken:
    print("left" if isinstance(taken, StoredRun) else "taken", flush=True)
    sys.stdin.readline()
"""


def test_of_processes_that_begin_at_once_one_does_the_work(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE, str(tmp_path), f"run-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        for number in range(3)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.stdout.readline().strip() for process in processes if process.stdout is not None]
    finally:
        for process in processes:
            process.communicate("done\n", timeout=60)
    assert sorted(answers) == ["left", "left", "taken"]
    assert len(Store(tmp_path).runs()) == 1
