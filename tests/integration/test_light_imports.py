import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"datasets", "matplotlib", "pandas", "pyarrow", "scipy", "torch", "transformers", "wandb"}

MODULES = """
import importlib, types
from pathlib import Path
package = types.ModuleType("corrigenda")  # without what its __init__.py passes on
package.__path__ = ["corrigenda"]
sys.modules["corrigenda"] = package
importlib.import_module("corrigenda.system.files"), importlib.import_module("corrigenda.system.progress")
for part in ("runs", "data"):
    for path in sorted(Path("corrigenda", part).glob("*.py")):
        importlib.import_module(f"corrigenda.{part}.{path.stem}".removesuffix(".__init__"))
"""
SHOWN = "import runpy; sys.argv = ['run.py', '{}']; runpy.run_path('{}', run_name='__main__')"
LIGHT = {
    "help": SHOWN.format("--help", ROOT / "run.py"),
    "Hydra's help": SHOWN.format("--hydra-help", ROOT / "run.py"),
    "packages": "import corrigenda, eval, locate; from corrigenda import Fact",
    "names of editors": "from editing.registry import EDITORS; assert {'rome', 'ft_l'} <= {*EDITORS}\n"
    "EDITORS.unknown('roem'); assert 'numpy' not in sys.modules",
    "runs and data": MODULES,
}
"""Code that imports no heavy package."""


def python(code: str, folder: Path) -> str:
    """What a fresh process says of some code."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", f"import sys\n{code}"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", LIGHT)
def test_nothing_heavy_is_imported(name: str, tmp_path: Path) -> None:
    code = f"import atexit\natexit.register(lambda: print(sorted({HEAVY!r} & {{*sys.modules}})))\n{LIGHT[name]}"
    assert python(code, ROOT if name == "runs and data" else tmp_path).splitlines()[-1] == "[]"
    assert not list(tmp_path.iterdir())


def test_an_edit_knows_its_kinds(tmp_path: Path) -> None:
    kinds = {"codebook", "coefficient", "context", "low_rank", "side_memory", "values"}
    python(f"from corrigenda import Edit; assert {kinds!r} <= {{*Edit.kinds}}", tmp_path)
