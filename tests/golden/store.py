"""Golden values on disk: what is kept of a value, how two are compared, and the one way to write them.

A file has one line for each value, by a dotted key: a number, a text, a short list; of a tensor its shape, norm, sum
and four entries. Nothing in it depends on how objects are laid out.

With 1 and with 2 threads, and from one run to the next, the values are the same to the bit, but for a last digit of
CrispEdit's now and then. Torch's and MKL's kernels for other processors (ATEN_CPU_CAPABILITY=default; avx2 with SSE4.2)
move them by up to a third of `TOLERANCE`, which is relative (`ABSOLUTE` is for what is next to 0). The bounds of
intervals over four facts jump by then from one resample to the next, by up to 0.3 of their value: what bounds are is
held to the tolerance in the leaderboard's cells, over forty facts with figures that no kernel makes.
``python tests/golden`` says how far all values are: on the machine that wrote them, 0.
"""

import dataclasses
import datetime
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "values"
TOLERANCE, ABSOLUTE = 3e-4, 3e-6
LOOSE = 2000.0
"""Times the tolerance: for bounds of intervals, and for a circuit's faithfulness, a share of what all edges of so small
a model do, which float32 tells to five digits."""
LONG = 12  # a longer list is kept as a tensor is, or by its hash
TEXT = 300  # and so is a text of more characters
PASSING = ("seconds", "seconds_per_edit", "peak_memory_mb", "tensors_sha256", "model_fingerprint")
"""What two runs never share."""


def kept(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The lines of a file: dotted keys, and of each value what is kept."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            if name not in PASSING:
                yield from kept(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, Tensor):
        yield key, _fingerprint(value)
    elif isinstance(value, (list, tuple)) and not all(
        isinstance(part, (str, int, float, type(None))) for part in value
    ):
        for number, part in enumerate(value):
            yield from kept(part, f"{key}.{number}")
    elif isinstance(value, (list, tuple)):
        numbers = [part for part in value if isinstance(part, (int, float))]
        if len(value) <= LONG:
            yield key, [_scalar(part) for part in value]
        elif len(numbers) == len(value):
            yield key, _fingerprint(torch.tensor(numbers, dtype=torch.float64))
        else:
            yield key, {"n": len(value), "hash": _hash(json.dumps(value))}
    else:
        yield key, _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    if isinstance(value, str) and len(value) > TEXT:
        return {"n": len(value), "hash": _hash(value), "begins": value[:60]}
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fingerprint(tensor: Tensor) -> dict[str, Any]:
    flat = tensor.detach().to("cpu", torch.float64).flatten().nan_to_num(nan=-1234.5)
    draw = torch.Generator().manual_seed(len(flat))
    at = torch.randint(max(1, len(flat)), (4,), generator=draw)
    some = [float(flat[place]) for place in at.tolist()] if len(flat) else []
    return {"shape": list(tensor.shape), "norm": float(flat.norm()), "sum": float(flat.sum()), "some": some}


def gap(was: Any, now: Any, scale: float = 0.0) -> float:
    """How far a value is from what it was, 1 being just tolerated; infinite where they differ in kind."""
    if isinstance(was, dict) and isinstance(now, dict) and was.keys() == now.keys():
        wide = abs(was.get("norm", 0.0)) * math.prod(was.get("shape", ())) ** 0.5
        return max(
            (gap(was[name], now[name], wide if name == "sum" else abs(was.get("norm", 0.0))) for name in was),
            default=0.0,
        )
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return max((gap(*pair, scale) for pair in zip(was, now, strict=True)), default=0.0)
    if float in (type(was), type(now)) and {type(was), type(now)} <= {int, float}:
        return abs(was - now) / max(ABSOLUTE, TOLERANCE * max(abs(was), abs(now), scale))
    return 0.0 if type(was) is type(now) and was == now else math.inf


def _apart(key: str, was: Any, now: Any) -> float:
    loose = key.endswith((".low", ".high")) or ".faithfulness." in key
    return gap(was, now) / (LOOSE if loose else 1.0)


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path_of(name).read_text(encoding="utf-8"))
    return found


def command(name: str) -> str:
    return f'python tests/golden --write {name} --why "..."'


def differences(name: str, values: Any, times: float = 1.0) -> list[str]:
    """A line for each value that is not what it was, to so many tolerances: the file, the key, was, is."""
    file = path_of(name).relative_to(FOLDER.parents[2])
    if not path_of(name).is_file():
        return [f"{file}: there is none yet; make it: {command(name)}"]
    was, now = read(name)["values"], json.loads(json.dumps(dict(kept(values))))
    gone = object()
    told = {gone: "nothing"}
    pairs = ((key, was.get(key, gone), now.get(key, gone)) for key in [*was, *(key for key in now if key not in was)])
    return [
        f"{file}: {key}: was {a if a is not gone else told[a]}, is {b if b is not gone else told[b]}"
        for key, a, b in pairs
        if _apart(key, a, b) > times
    ]


def write(name: str, values: Any, why: str) -> None:
    """Writes a file anew, and why."""
    if not why.strip():
        raise ValueError(f"{name}: say why its values change: {command(name)}")
    changes = read(name)["changes"] if path_of(name).is_file() else []
    changes.append({"date": datetime.date.today().isoformat(), "why": why})
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in kept(values)]
    path_of(name).parent.mkdir(parents=True, exist_ok=True)
    text = f'{{\n "changes": {json.dumps(changes)},\n "values": {{\n' + ",\n".join(lines) + "\n }\n}\n"
    path_of(name).write_text(text, encoding="utf-8")


def farthest(name: str, values: Any) -> float:
    """The largest `gap` of a file; 0 where every value is the same to the bit."""
    was, now = read(name)["values"], json.loads(json.dumps(dict(kept(values))))
    return max(_apart(key, value, now.get(key)) for key, value in was.items())
