import ast
import importlib
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[3] / "docs" / "notebooks").glob("*.ipynb"))
PROJECT = ("corrigenda", "editing", "eval", "jobs", "locate")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_what_a_notebook_imports_is_there(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    code = ast.parse("\n".join(cell.source for cell in cells if cell.cell_type == "code"))
    imports = [node for node in ast.walk(code) if isinstance(node, ast.ImportFrom) and node.module]
    ours = [node for node in imports if str(node.module).partition(".")[0] in PROJECT]
    assert ours
    for node in ours:
        module = importlib.import_module(str(node.module))
        for name in node.names:
            assert hasattr(module, name.name), f"{path.name}: {node.module} has no {name.name}"
