import logging

import pytest

from corrigenda.system.workers import Workers
from editing import Memit, Rome
from jobs.edit.job import _spread


def test_an_editor_that_can_gets_the_workers_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers(2, "auto")
    found = _spread(Memit(ratio=2.0), workers)
    assert found == Memit(ratio=2.0, workers=workers)
    own = Memit(workers=Workers(3))
    assert _spread(own, workers) is own  # what was said of the editor itself counts
    assert not caplog.records


def test_one_that_cannot_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert _spread(Rome(layer=1), Workers(2)) == Rome(layer=1)
    [record] = caplog.records
    assert "workers.number=2: rome edits many facts in one process" in record.getMessage()
