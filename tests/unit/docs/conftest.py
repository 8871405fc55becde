"""The commands of docs/reports and docs/site are scripts: their folder is on the path, as it is when one is started."""

import sys
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
sys.path[:0] = [str(DOCS / "reports"), str(DOCS / "site")]
