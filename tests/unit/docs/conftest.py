"""The commands of docs/ are scripts: their folders are on the path, as each is when one is started."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[3] / "docs"
sys.path[:0] = [str(DOCS / folder) for folder in ("reports", "site", "figures")]


@pytest.fixture(autouse=True, scope="module")
def coarse_pictures() -> Iterator[None]:
    """Pictures are drawn, but not in the size that they are printed in: nobody looks at these."""
    from matplotlib.figure import Figure  # half a second to import, and every process collects these tests

    save: Callable[..., None] = Figure.savefig

    def coarse(figure: Figure, *args: Any, **settings: Any) -> None:
        save(figure, *args, **{**settings, "dpi": 20})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", coarse)
        yield
