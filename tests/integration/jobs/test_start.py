import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SHOW = """
import json, runpy, sys
sys.path.insert(0, "")
try:
    {what}
except SystemExit as stop:
    assert not stop.code, stop.code
print("\\n" + json.dumps({{"heavy": sorted({{"torch", "transformers", "datasets"}} & set(sys.modules)), **found}}))
"""


def after(what: str, folder: Path) -> dict[str, object]:
    """What a fresh process has imported after some statements, and what these put into `found`."""
    code = SHOW.format(what="; ".join(["found = {}", what]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("asked", ["--help", "--hydra-help"])
def test_what_only_shows_the_choices_imports_nothing_heavy(asked: str, tmp_path: Path) -> None:
    what = f"sys.argv = ['run.py', '{asked}']; runpy.run_path({str(ROOT / 'run.py')!r}, run_name='__main__')"
    assert after(what, tmp_path)["heavy"] == []
    assert not list(tmp_path.iterdir())


def test_the_packages_import_nothing_heavy_and_an_edit_knows_its_kinds(tmp_path: Path) -> None:
    assert after("import corrigenda, eval, locate; from corrigenda import Fact", tmp_path)["heavy"] == []
    found = after("from corrigenda import Edit; found['kinds'] = sorted(Edit.kinds)", tmp_path)
    kinds = ["codebook", "coefficient", "context", "low_rank", "side_memory", "values"]
    assert set(kinds) <= set(found["kinds"])  # type: ignore[call-overload]
