"""Settings with which a dictionary of a tiny model's features is trained in a second."""

from typing import Any

SMALL: dict[str, Any] = {"shipped": 640, "sampled": 0, "length": 16, "held_out": 8, "batch": 64, "buffer": 256}
