import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from omegaconf import OmegaConf
from run_parts import SMALL_EVALUATION, write_code_of_page

ROOT = Path(__file__).resolve().parents[2]

ENTRY_POINTS = """\
[corrigenda.editors]
nudge = my_editor:Nudge

[corrigenda.locators]
norms = my_locator:Norms

[corrigenda.jobs]
count = my_job:Count

[corrigenda.data]
capitals = my_data:parse

[corrigenda.metrics]
words = my_metric
"""

# Names that the project has at its top, and two of the libraries that it uses.
TAKEN = ("eval", "run", "locate", "editing", "datasets", "yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder, with modules of their own whose names are the project's, too: whoever imports one fails."""
    for name in TAKEN:
        (tmp_path / f"{name}.py").write_text(f'raise SystemExit("{name}.py of the user was imported")\n')
    for name in ("conf", "jobs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f'raise SystemExit("{name}/ of the user was imported")\n')
    (tmp_path / "conf" / "config.yaml").write_text("theirs: true\n")
    return tmp_path


def call(folder: Path, *arguments: str, path: tuple[Path, ...] = ()) -> str:
    """What ``python -m corrigenda ARGUMENTS`` says in a folder, with some folders on PYTHONPATH before ours."""
    return python(folder, "-m", "corrigenda", *arguments, path=path)


def python(folder: Path, *arguments: str, path: tuple[Path, ...] = ()) -> str:
    """What Python says there."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT))), "OMP_NUM_THREADS": "1"}
    environment["CORRIGENDA_CACHE"] = str(folder / "cache")
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_modules_of_the_same_names_are_in_nobodys_way(folder: Path) -> None:
    (folder / "mine" / "editor").mkdir(parents=True)
    (folder / "mine/editor/my_memit.yaml").write_text("defaults: [memit]\nridge: 0.5\n")
    named = ["--config-dir", "mine", "--cfg", "job", "editor=my_memit"]
    job = OmegaConf.create(call(folder, *named, path=(folder,)))
    assert (job.editor._target_, job.editor.ridge) == ("editing.Memit", 0.5)
    assert "theirs" not in job
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for name in TAKEN[:4]:
        (elsewhere / f"{name}.py").write_text(f'raise SystemExit("{name}.py of the user was imported")\n')
    assert OmegaConf.create(call(folder, "--cfg", "job", path=(elsewhere,))).job.name == "edit"
    # Theirs stay theirs: the core alone imports none of the names that lie above it.
    code = "import corrigenda, corrigenda.facts, sys; print(sorted({*sys.modules} & {%r, 'conf', 'jobs'}))"
    assert python(folder, "-c", code % "', '".join(TAKEN[:4])).strip() == "[]"


@pytest.fixture
def additions(folder: Path) -> Path:
    tiny.build("llama").save_pretrained(folder / "model")
    write_code_of_page(folder)
    (folder / "capitals.csv").write_text("number,state,old,new\n1,France,Paris,Rome\n2,Italy,Rome,London\n")
    return folder


OF = ["model=own", "model.name=model", "model.device=cpu", "data=facts", "data.path=capitals.csv"]
ONE_BY_ONE = "import json, sys; from corrigenda.__main__ import main"
SMALL = [*SMALL_EVALUATION, "eval.perplexity_windows=0"]


def test_files_of_the_users(additions: Path) -> None:
    named = ["editor=own", "editor._target_=my_editor.Nudge", "+editor.strength=0.2", "plugins=[my_metric]"]
    call(additions, *named, "data.schema=my_data.parse", *OF, "hydra.run.dir=done", *SMALL)
    summary = json.loads((additions / "done/summary.json").read_text())
    assert (summary["editor"], summary["n_facts"], summary["n_failed"]) == ("nudge", 2, 0)
    assert summary["metrics"]["answer_words"]["n"] == 2
    edit = json.loads((additions / "done/edits/0000-1/edit.json").read_text())
    assert edit["origin"]["settings"] == {"layer": 1, "strength": 0.2}


def test_an_installed_package(additions: Path) -> None:
    package = additions / "site"
    (package / "theirs-1.0.dist-info").mkdir(parents=True)
    (package / "theirs-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (package / "theirs-1.0.dist-info/entry_points.txt").write_text(ENTRY_POINTS)
    for name in ("editor", "metric", "data", "locator", "job"):
        (additions / f"my_{name}.py").rename(package / f"my_{name}.py")
    commands = [
        ["editor=nudge", "+editor.layer=2", "hydra.run.dir=done", *SMALL],
        ["norms", "hydra.run.dir=found"],
        ["count", "+job.times=3", "hydra.run.dir=counted"],
    ]
    whole = json.dumps([["corrigenda", *one, *OF, "data.schema=capitals"] for one in commands])
    python(additions, "-c", f"{ONE_BY_ONE}\nfor sys.argv in json.loads({whole!r}): main()", path=(package,))
    summary = json.loads((additions / "done/summary.json").read_text())
    assert (summary["editor"], summary["n_facts"]) == ("nudge", 2)
    assert "answer_words" in summary["metrics"]

    assert json.loads((additions / "found/summary.json").read_text())["n_located"] == 2
    assert len(list((additions / "found/pictures").glob("*.png"))) == 2
    assert json.loads((additions / "counted/summary.json").read_text()) == {"layers": tiny.DEPTH, "facts": 6}
