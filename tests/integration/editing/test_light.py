import subprocess
import sys
from pathlib import Path

LIST = """
import sys
from editing.registry import EDITORS
names = list(EDITORS)
assert "rome" in names and "ft_l" in names
message = EDITORS.unknown("roem")
heavy = {"torch", "transformers", "numpy", "scipy"} & set(sys.modules)
assert not heavy, heavy
EDITORS["none"]
assert "torch" in sys.modules
"""


def test_names_are_listed_without_the_heavy_packages() -> None:
    subprocess.run([sys.executable, "-c", LIST], cwd=Path(__file__).parents[3], check=True)
