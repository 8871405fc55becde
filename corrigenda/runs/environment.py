"""What a run ran on: versions, the machine, and how much memory was needed."""

import importlib.metadata
import os
import platform
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

PACKAGES = (
    "corrigenda",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "hydra-core",
    "numpy",
    "scipy",
    "safetensors",
)


def environment() -> dict[str, Any]:
    """What a run is made with from now on: versions and the machine."""
    begun = datetime.now().isoformat(timespec="seconds")
    return {"begun": begun, "versions": versions(), "machine": machine()}


def versions() -> dict[str, str]:
    """The versions of Python and of the packages whose change could change a figure."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def machine() -> dict[str, str | int]:
    """The kind of machine, without its name."""
    import torch

    found: dict[str, str | int] = {"system": platform.system(), "processor": platform.machine()}
    found["threads"] = torch.get_num_threads()
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def memory_mb() -> float | None:
    """The memory this process holds now: on the GPU if it uses one, else in RAM (MiB); None where it is not told."""
    import torch

    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        return torch.cuda.memory_allocated() / 2**20
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().rss) / 2**20
    pages = Path("/proc/self/statm")  # Linux has it
    if not pages.is_file():
        return None
    return int(pages.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_memory_mb() -> float:
    """The most memory this process has held: on the GPU if it used one, else in RAM (MiB)."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    return _peak_ram() / 2**20


def _peak_ram() -> int:
    """In bytes. The standard library says it on POSIX systems only."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, kilobytes elsewhere
