import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from composed import composed

import run  # noqa: F401  registers what configurations resolve
from jobs.shared.words import long_form

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of each command in a page's blocks of sh. What has ``...`` in it is no whole command."""
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("corrigenda ") and "..." not in line:
                yield shlex.split(line, comments=True)[1:]


def one_run(argument: str) -> str:
    """Of several values, which are a run each, the first."""
    argument = re.sub(r"=(?:range|interval)\(([^,)]+),.*\)$", r"=\1", argument)
    return re.sub(r"^(\S+?=[^\[{'\"\s,]+),\S*$", r"\1", argument)


OWN = ("--config-dir", "my_", "nudge", "norms", "capitals")
"""What stands in commands that need a file, a configuration or a package of the reader's own."""

WHOLE = [(page, found) for page in PAGES for found in commands(page)]


@pytest.mark.parametrize(("page", "arguments"), WHOLE, ids=[f"{page.stem}: {' '.join(found)}" for page, found in WHOLE])
def test_a_command_is_understood(page: Path, arguments: list[str]) -> None:
    if any(word in argument for argument in arguments for word in OWN):
        pytest.skip("names files of the reader's own")
    found = composed(*long_form([one_run(argument) for argument in arguments if argument != "-m"]))
    assert found.mode


def test_there_are_commands() -> None:
    assert sum(page.parent.name == "tutorials" for page, _ in WHOLE) > 10
