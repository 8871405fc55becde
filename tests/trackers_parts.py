"""What the tests of trackers share."""

from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np

from corrigenda.runs.trackers import Tracker

CASES: list[dict[str, Any]] = [
    {
        "id": "a",
        "fact": {"subject": "Tartu", "prompt": "{} lies in", "target_new": "Chile", "target_true": "Estonia"},
        "error": "",
        "seconds": 1.5,
        "edit": {"loss": 0.2, "losses": [3.0, 1.0, 0.2], "steps": [1, 2], "loss_note": ["no number"]},
        "before": {
            "values": {"efficacy_success": 0.0},
            "prompts": {"prompt": [{"p_new": 0.1, "p_true": 0.6, "answer": " Estonia"}]},
        },
        "after": {
            "values": {"efficacy_success": 1.0, "fluency": 5.5},
            "prompts": {"prompt": [{"p_new": 0.9, "p_true": 0.1, "answer": " Chile"}]},
        },
    },
    {
        "id": "b",
        "fact": {"subject": "Narva", "prompt": "{} lies in", "target_new": "Peru"},
        "error": "refused: too much",
        "seconds": None,
        "edit": None,
        "before": None,
        "after": {"values": {"efficacy_success": 0.5}, "prompts": {}},
    },
]
SUMMARY: dict[str, Any] = {
    "metrics": {
        "efficacy_success": {"before": 0.0, "after": 0.75, "low": 0.5, "high": 1.0, "n": 2},
        "perplexity_drift": {"before": None, "after": 0.01, "low": None, "high": None, "n": 2},
    },
    "seconds_per_edit": 1.5,
    "peak_memory_mb": None,
    "n_facts": 2,
}
CONFIG = {"seed": 0, "editor": {"layer": 3}}


def told(one: Tracker, folder: Path) -> None:
    """A whole run, with a picture at its end."""
    for number, case in enumerate(CASES):
        one.case(number, case)
    matplotlib.image.imsave(folder / "curve.png", np.zeros((4, 6, 3)))
    one.finish(SUMMARY)


def wandb_settings(**changes: Any) -> dict[str, Any]:
    return {"name": "wandb", "project": "corrigenda", "entity": None, "group": None} | changes
