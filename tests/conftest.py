"""Fixtures that all tiers share: the real model, loaded once, the reference data, a store of made-up runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import torch
from made_runs import make_run as make_run
from made_runs import submission as submission

from corrigenda import LanguageModel, load

# Of several processes of tests (pytest-xdist) each takes its share of the cores, and so do the ones that it starts.
SIDE_BY_SIDE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if SIDE_BY_SIDE > 1:
    threads = max(1, (os.cpu_count() or 1) // SIDE_BY_SIDE)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    torch.set_num_threads(threads)

SHARED = Path(os.environ.get("CORRIGENDA_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def smollm2() -> LanguageModel:
    """The real default model. Tests revert what they apply."""
    return load("smollm2-135m")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with reference data that lies beside the checkout; tests that need it are skipped without it."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the reference data in {SHARED} (or CORRIGENDA_SHARED)")
    return SHARED
