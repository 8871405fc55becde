"""A local ray of two workers, for all tests of a file: starting one takes seconds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import program
import pytest
import tiny

from corrigenda.system.workers import Workers, _begin


@contextmanager
def two_workers(cache: Path, of: str) -> Iterator[str]:
    """A cluster with room for two workers, and its address.

    Args:
        cache: the cache of what its workers compute.
        of: the test's file: workers find what it defines.
    """
    ray = pytest.importorskip("ray", reason="needs the extra 'ray': pip install corrigenda[ray]")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in program.environment(cache).items():
            patch.setenv(name, value)
        folders = (os.environ["PYTHONPATH"], str(Path(tiny.__file__).parent), str(Path(of).parent))
        patch.setenv("PYTHONPATH", os.pathsep.join(folders))
        _begin(ray, Workers(2), 2)
        try:
            yield str(ray.get_runtime_context().gcs_address)
        finally:
            ray.shutdown()
