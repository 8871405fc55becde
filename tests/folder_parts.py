"""What the tests of a run's folder share."""

import math
from pathlib import Path
from typing import Any

import yaml

from corrigenda.runs.folder import RunFolder

CONFIG: dict[str, Any] = {
    "mode": "single",
    "seed": 0,
    "editor": {"_target_": "editing.Rome", "layer": 1},
    "model": {"name": "tiny", "dtype": "float32", "device": None},
    "data": {"path": "facts.jsonl"},
    "eval": {"generate": True},
    "logger": {"name": "none"},
    "resume": None,
    "job": {"name": "edit"},
}


def record(number: int) -> dict[str, Any]:
    """A record with values that a sloppy format would change."""
    after = {"efficacy_success": 1.0, "efficacy_magnitude": math.nextafter(0.1, 1) * 10**-number, "odd": -0.0}
    return {
        "id": f"fact-{number}",
        "fact": {"subject": f"subject {number}", "prompt": "{} is", "target_new": "été\u2028\n", "relation": None},
        "verb": "modify",
        "edit": None if number == 1 else {"layers": [1, 2], "loss": 1e-17},
        "seconds": None if number == 2 else 0.1 + 0.2,
        "error": "",
        "before": None if number == 3 else {"values": {"efficacy_success": 0.0}, "prompts": {"prompt": [{"p": 1 / 3}]}},
        "after": {"values": after, "prompts": {}, "extra": [1, 1.0, True]},
    }


def begun(path: Path, identity: dict[str, str], cases: int = 0, **config: Any) -> RunFolder:
    folder = RunFolder(path)
    folder.begin(yaml.safe_dump({**CONFIG, **config}))
    folder.identify(**identity)
    for number in range(cases):
        folder.append(record(number))
    return folder


def summary(n: int, **others: Any) -> dict[str, Any]:
    return {"editor": "rome", "model": "tiny", "data": "facts", "mode": "single", "n_facts": n, "metrics": {}} | others


def unexpected() -> RunFolder:
    raise AssertionError("there is a run to go on with")
