"""Runs the notebooks of ``docs/notebooks`` from top to bottom, and keeps their output.

    python docs/site/run_notebooks.py [NAME ...]        all of them, or these

What depends on the run and says nothing is left out: times, versions, progress, warnings with paths. `make notebooks`.
"""

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "notebooks"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""How a terminal is told colours."""
PROGRESS = re.compile(r"(.*): done in .*")
"""What `corrigenda.system.progress` says when something has taken long."""


def executed(path: Path, folder: Path, timeout: int = 600) -> Any:
    """A notebook after a run from top to bottom.

    Args:
        path: of the notebook.
        folder: the run's working folder; what the notebook writes lies there.
        timeout: seconds that a cell may take.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    client.execute(env=os.environ | {"PYTHONPATH": os.pathsep.join(places)})
    return stripped(notebook)


def stripped(notebook: Any) -> Any:
    """The notebook without what depends on the run and says nothing, changed in place."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    number = 0
    for place, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{place}", {}
        if cell.cell_type == "code":
            number += 1
            cell.execution_count = number
            cell.outputs = _without_progress(cell.outputs)
            cell.outputs = _joined(
                [_plain(output, number) for output in cell.outputs if output.get("name") != "stderr"]
            )
    return notebook


def _plain(output: Any, number: int) -> Any:
    """An output as text without colours, or as a picture, and nothing else."""
    if output.output_type == "stream":
        return output
    if output.output_type == "execute_result":
        output.execution_count = number
    output.metadata = {}
    if "image/png" in output.data:
        output.data = {"image/png": output.data["image/png"]}
    else:
        output.data = {"text/plain": COLOURS.sub("", output.data.get("text/plain", ""))}
    return output


def _without_progress(outputs: list[Any]) -> list[Any]:
    """Outputs without what tells of progress, which depends on what is kept on disk already."""
    said = [COLOURS.sub("", output.get("data", {}).get("text/plain", "")).strip() for output in outputs]
    told = {found[1] for text in said if (found := PROGRESS.match(text))}
    return [
        output
        for output, text in zip(outputs, said, strict=True)
        if not any(text == stage or text.startswith(f"{stage}: ") for stage in told)
    ]


def _joined(outputs: list[Any]) -> list[Any]:
    """Outputs without empty ones; what was printed in pieces is one text."""
    found: list[Any] = []
    for output in outputs:
        kind, last = output.output_type, found[-1] if found else None
        same = last is not None and last.output_type == kind
        if kind == "stream":
            if same:
                last.text += output.text
            elif output.text.strip():
                found.append(output)
        elif kind == "display_data" and same and "text/plain" in output.data and "text/plain" in last.data:
            last.data["text/plain"] = f"{last.data['text/plain'].rstrip()}\n{output.data['text/plain']}"
        else:
            found.append(output)
    return found


def main(names: Sequence[str]) -> None:
    """Runs those named, or all, and writes them."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(executed(path, Path(folder)), path)


if __name__ == "__main__":
    main(sys.argv[1:])
