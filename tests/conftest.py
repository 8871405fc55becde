"""What all tiers share: the order of tests, a cache apart from the user's, and the reference data.

Nothing heavy is imported here: the process that hands the tests out to others (pytest-xdist) reads this file, too.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from server_stub import Stub

    from corrigenda import LanguageModel

sys.path.insert(0, str(Path(__file__).parent))

# Of several processes of tests each takes its share of the cores, and so do the ones that it starts. torch reads this
# when it is first imported.
SIDE_BY_SIDE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if SIDE_BY_SIDE > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // SIDE_BY_SIDE)))

# The word by which ray's processes know each other: ray would leave one in the user's folder, each of two tests that
# begin at once its own. And that they ask for it: of a cluster that is named by its address ray does not assume it.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-the-tests"}

# On a busy machine ray must not end workers for the memory that others take, and wandb's service may start slowly.
os.environ |= {"RAY_memory_monitor_refresh_ms": "0", "WANDB__SERVICE_WAIT": "300"}

# What a terminal, or a colour-loving service that runs tests, asks of rich: lines are as long, and as plain, as files
# have them.
for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Servers of tests are on this machine; a proxy that the user has cannot reach them.
for name in ("NO_PROXY", "no_proxy"):
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost")))

QUICK, NIGHTLY = "--quick", "--nightly"
LONG = ("real", "integration")
"""The tiers with files that take minutes, the longest first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--quick``, which ``make unit`` gives, and ``--nightly``, which ``make nightly`` gives."""
    parser.addoption(QUICK, action="store_true", help="tests over all model families: one of each kind of block only")
    parser.addoption(NIGHTLY, action="store_true", help="the tests that are marked nightly, and no other")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of another time of day, and what ``--quick`` leaves out; puts the long files first.

    Processes of tests that take a file after the other then end at about the same time: what is left for the end are
    files of seconds.
    """
    nightly: bool = config.getoption(NIGHTLY)
    out = [item for item in items if (item.get_closest_marker("nightly") is not None) != nightly]
    if config.getoption(QUICK):
        import tiny

        others = {*tiny.CONFIGS, *tiny.MIXTURES} - {*tiny.KINDS, *tiny.MIXTURE_KINDS}
        out += [item for item in items if isinstance(item, pytest.Function) and others & set(_texts(item))]
    config.hook.pytest_deselected(items=out)
    left_out = set(out)
    items[:] = sorted((item for item in items if item not in left_out), key=_tier)


def pytest_collection_finish() -> None:
    """What was imported stays; Python need not look through it for what is gone, a seventh of the time of the tests."""
    gc.collect()
    gc.freeze()


def _tier(item: pytest.Item) -> int:
    """The place of a test's tier among `LONG`, or behind them."""
    folders = [Path(__file__).parent / tier for tier in LONG]
    return next((place for place, folder in enumerate(folders) if item.path.is_relative_to(folder)), len(LONG))


def _texts(item: pytest.Function) -> list[str]:
    """The texts among a test's parameters: of tests over families their names."""
    call = getattr(item, "callspec", None)
    return [] if call is None else [value for value in call.params.values() if isinstance(value, str)]


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Nothing that is written in this process has to survive a loss of power, which is all that `os.fsync` is for.

    A run waits for the disk after each case: a store of five made-up runs 200 times. That whole lines are written and
    that kills lose nothing is tested in tests/integration, by processes of their own, which do wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def users_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One cache for all tests that have none of their own; gives the user's, which only tests/real use."""
    users = os.environ.get("CORRIGENDA_CACHE", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRIGENDA_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield users


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each `time.sleep` of a test, which come to nothing: how long it would have waited."""
    taken: list[float] = []
    monkeypatch.setattr(time, "sleep", taken.append)
    return taken


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A server of OpenAI's protocol that answers what the test tells it to."""
    from server_stub import running

    with running() as made:
        yield made


SHARED = Path(os.environ.get("CORRIGENDA_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture
def lm() -> LanguageModel:
    """A tiny Llama of the test's own."""
    import tiny

    return tiny.llama()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with reference data that lies beside the checkout; tests that need it are skipped without it."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the reference data in {SHARED} (or CORRIGENDA_SHARED)")
    return SHARED
