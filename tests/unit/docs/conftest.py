"""The commands of docs/ are scripts: their folders are on the path, as each is when one is started."""

import sys
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
sys.path[:0] = [str(DOCS / folder) for folder in ("reports", "site", "figures")]
