"""The notebooks of ``docs/notebooks`` as pages, with the output that they hold."""

import base64
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def nav() -> list[dict[str, str]]:
    """The entries of the navigation, by the first heading of each."""
    return [{_title(_read(path)): _uri(path)} for path in _paths()]


def pages() -> dict[str, str | bytes]:
    """Pages, and the pictures in them, by their place on the site."""
    found: dict[str, str | bytes] = {}
    for path in _paths():
        parts = [f"[Download the notebook]({path.name}). Its output is that of a run from top to bottom."]
        for number, cell in enumerate(_read(path).cells):
            if cell.cell_type == "markdown":
                parts.insert(len(parts) if number else 0, cell.source)
                continue
            parts.append(f"```python\n{cell.source}\n```")
            for place, output in enumerate(cell.outputs):
                picture = f"{path.stem}-{number}-{place}.png"
                image = output.get("data", {}).get("image/png")
                if image is not None:
                    found[f"notebooks/{picture}"] = base64.b64decode(image)
                    parts.append(f"![{cell.source.splitlines()[0]}]({picture})")
                elif text := _text(output):
                    parts.append(f"```text\n{text.rstrip()}\n```")
        found[_uri(path)] = "\n\n".join(parts) + "\n"
    return found


def _paths() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def _uri(path: Path) -> str:
    return f"notebooks/{path.stem}.md"


def _read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def _title(notebook: Any) -> str:
    title: str = notebook.cells[0].source.splitlines()[0].lstrip("# ")
    return title


def _text(output: Any) -> str:
    """What a reader sees of an output that is no picture."""
    text: str = output.text if output.output_type == "stream" else output.get("data", {}).get("text/plain", "")
    return text
