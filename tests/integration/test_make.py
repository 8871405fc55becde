import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OUTER = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS", "VENV", "WORKERS", "TORCH")
"""What the make that runs the tests hands on to those that they run."""

STUB = """#!/bin/sh
echo "$*" >> "{log}"
case "$*" in *whl/cpu*) exit {status};; esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def make(checkout: Path, *arguments: str, status: int = 0) -> tuple[list[str], str]:
    """What the environment's Python is asked by ``make ARGUMENTS``, and what make says.

    Args:
        checkout: where.
        arguments: the target, and variables.
        status: what fetching the CPU build of PyTorch ends with.
    """
    log, python = checkout / "log", checkout / ".venv/bin/python"
    log.write_text("")
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(STUB.format(log=log, status=status))
    python.chmod(0o755)
    command = ["make", *arguments, f"PYTHON={sys.executable}"]
    env = {name: value for name, value in os.environ.items() if name not in OUTER}
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=True)
    return log.read_text().splitlines(), done.stdout


def test_the_demo_installs_no_extra(checkout: Path) -> None:
    asked, _ = make(checkout, "demo", "TORCH=default", "ARGS=editor=rome")
    assert len(asked) == 2
    assert asked[0].endswith("--constraint constraints.txt --editable .")
    assert asked[1] == "run.py editor=rome"
    asked, _ = make(checkout, "demo", "TORCH=default")
    assert [line.strip() for line in asked] == ["run.py"]  # installed once
    asked, _ = make(checkout, "setup", "TORCH=default")
    assert asked[-1].endswith("--editable .[dev]")
    assert len(make(checkout, "demo", "TORCH=default")[0]) == 1


def test_the_cpu_build(checkout: Path) -> None:
    asked, said = make(checkout, "demo", "TORCH=cpu")
    version = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    assert asked[0].endswith(f"--index-url https://download.pytorch.org/whl/cpu {version}")
    assert "does not give it" not in said
    assert len(asked) == 3


def test_the_cpu_build_cannot_be_reached(checkout: Path) -> None:
    asked, said = make(checkout, "demo", "TORCH=cpu", status=1)
    assert "going on with the build that pip finds elsewhere" in said
    assert (asked[1].split()[-1], asked[2].split()[0]) == (".", "run.py")


def test_a_torch_that_is_there_is_kept(checkout: Path) -> None:
    (checkout / ".venv/lib/python3.11/site-packages/torch-2.13.0.dist-info").mkdir(parents=True)
    assert len(make(checkout, "demo", "TORCH=cpu")[0]) == 2


def test_the_site_is_built_strictly(checkout: Path) -> None:
    asked, _ = make(checkout, "site", "TORCH=default")
    assert asked[-1].strip() == "-m mkdocs build --strict"
