"""The commands of docs/reports are scripts: their folder is on the path, as it is when one is started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "reports"))
