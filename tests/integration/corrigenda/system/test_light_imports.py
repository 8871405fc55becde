import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
HEAVY = ("datasets", "matplotlib", "pandas", "pyarrow", "scipy", "torch", "transformers", "wandb")

PROGRAM = f"""
import importlib, sys, types
from pathlib import Path
package = types.ModuleType("corrigenda")  # without what its __init__.py passes on
package.__path__ = ["corrigenda"]
sys.modules["corrigenda"] = package
names = ["system.files", "system.progress", *(f"{{part}}.{{path.stem}}" for part in ("runs", "data") for path in
         sorted(Path("corrigenda", part).glob("*.py")))]
for name in names:
    importlib.import_module("corrigenda." + name.removesuffix(".__init__"))
    found = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]
    assert not found, f"corrigenda.{{name}} imports {{', '.join(found)}}"
"""


def test_no_heavy_package_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
