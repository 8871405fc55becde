"""Malformed data that a slow library looks at."""

from __future__ import annotations

from pathlib import Path

import pytest

from corrigenda.data import read_facts


def test_a_folder_called_like_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(FileNotFoundError, match=r"^.*x\.json: found no data files in this folder .*$") as error:
        read_facts(tmp_path / "x.json")
    assert "\n" not in str(error.value)


def test_a_file_in_a_folder_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text("[{")
    with pytest.raises(ValueError, match="split 'train', config None") as error:
        read_facts(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)
