"""What ``corrigenda help editor=NAME`` prints."""

from __future__ import annotations

import pytest

from jobs.help import help_on


def test_an_editor_is_described_with_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert help_on(["help", "editor=grace_wide"])
    said = capsys.readouterr().out
    assert said.startswith("grace_wide: grace with other settings\nHartvigsen")
    [widen] = [line for line in said.splitlines() if "editor.widen" in line]
    assert widen.split("│")[2].strip() == "2.0"  # the preset's, where the class has 1
    [source] = [line for line in said.splitlines() if "editor.text.source" in line]
    assert source.split("│")[2].strip() == "self"


def test_what_is_not_asked_is_not_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert not help_on(["help"])
    assert not help_on(["editor=rome"])
    with pytest.raises(ValueError, match="did you mean rome"):
        help_on(["help", "editor=roem"])
    assert capsys.readouterr().out == ""
