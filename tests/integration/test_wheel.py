import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("corrigenda", "locate", "editing", "eval", "jobs", "conf")
BIN = "Scripts" if os.name == "nt" else "bin"


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that must succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built offline from a copy of the sources (a build in the checkout would leave its litter there)."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE", "run.py"):
        shutil.copy2(ROOT / name, source / name)
    # tests and benchmarks come along to show that they are left out.
    for name in (*PACKAGES, "hydra_plugins", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip_wheel = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip_wheel, "--wheel-dir", out, source, cwd=source)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh environment that has the wheel, and the dependencies from this one.

    This environment's site-packages are put on the fresh one's path by a .pth file. Python reads .pth files only in
    an environment's own site-packages, so an editable install of the checkout does not come along with them.
    """
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / BIN / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=home)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip()
    here = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    Path(site, "dependencies.pth").write_text("\n".join(here) + "\n", encoding="utf-8")
    return home / BIN


def test_contents_are_the_packages_and_their_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    shipped = {name for name in names if ".dist-info/" not in name}

    patterns = ["*/**/*.py", "*/py.typed", "conf/**/*.yaml", "corrigenda/data/**/*.json", "corrigenda/data/**/*.txt"]
    patterns += [f"corrigenda/data/**/*.{suffix}" for suffix in ("xz", "safetensors")]
    patterns += ["eval/**/templates/*", "jobs/**/templates/*", "hydra_plugins/**/*.py"]
    expected = {
        path.relative_to(ROOT).as_posix()
        for pattern in patterns
        for path in ROOT.glob(pattern)
        if path.relative_to(ROOT).parts[0] in (*PACKAGES, "hydra_plugins")
    }
    assert shipped == expected | {"run.py"}
    # The comparison above would hold for missing sources too, so name what must be there.
    typed = (f"{package}/py.typed" for package in PACKAGES[:-1])
    for name in ("conf/config.yaml", *(f"{package}/__init__.py" for package in PACKAGES), *typed):
        assert name in shipped
    assert any(name.startswith("corrigenda/data/") and name.endswith(".json") for name in shipped)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_console_script_is_declared(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        text = archive.read(name).decode()
    assert text.split() == ["[console_scripts]", "corrigenda", "=", "corrigenda.__main__:main"]


def test_imports_come_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    names = [*PACKAGES, "run"]
    code = f"import importlib\nfor name in {names!r}: print(importlib.import_module(name).__file__)"
    files = run(installed / "python", "-c", code, cwd=tmp_path).split("\n")[: len(names)]
    home = installed.parent.resolve()
    for name, file in zip(names, files, strict=True):
        assert Path(file).resolve().is_relative_to(home), f"{name} comes from {file}, not from the wheel"


def test_console_script_composes_the_job(installed: Path, tmp_path: Path) -> None:
    job = OmegaConf.create(run(installed / "corrigenda", "--cfg", "job", cwd=tmp_path))
    assert {"model", "data", "editor"} <= set(job)
    assert job == OmegaConf.create(run(sys.executable, ROOT / "run.py", "--cfg", "job", cwd=tmp_path))
    assert not list(tmp_path.iterdir()), "showing the configuration must leave nothing behind"
