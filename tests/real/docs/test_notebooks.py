from pathlib import Path

import nbformat
import pytest

from corrigenda import LanguageModel

DOCS = Path(__file__).parents[3] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the notebooks' own libraries
def test_a_notebook_runs(path: Path, tmp_path: Path, smollm2: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """`smollm2` is asked for so that the model is there, or the reason why it is not is told once."""
    monkeypatch.syspath_prepend(str(DOCS / "site"))
    from run_notebooks import executed

    notebook = executed(path, tmp_path)
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert shown
    assert all(output.output_type != "error" for output in shown)
    # A cell that showed something when the notebook was kept shows something now.
    kept = nbformat.read(path, as_version=4)
    assert [bool(cell.get("outputs")) for cell in notebook.cells] == [bool(cell.get("outputs")) for cell in kept.cells]
