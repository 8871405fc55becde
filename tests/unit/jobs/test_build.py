import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from safetensors import SafetensorError

from corrigenda import Fact
from corrigenda.errors import SettingsError
from corrigenda.knowledge.plan import Plan
from jobs.build.folder import NEW, OLD, PARTS, READY, REPORT, BuildFolder
from jobs.build.plan import MOST, in_words
from jobs.shared.acceptance import AcceptSettings, judge


def a_build(mark: str, parts: tuple[str, ...] = PARTS) -> object:
    def write(new: Path) -> None:
        for name in parts:
            if "." in name:
                (new / name).write_text(mark)
            else:
                (new / name).mkdir()
                (new / name / "file").write_text(mark)

    return write


def content(folder: Path) -> dict[str, str]:
    found = {}
    for name in PARTS:
        path = folder / name if "." in name else folder / name / "file"
        if path.exists():
            found[name] = path.read_text()
    return found


class Killed(BaseException):
    """Nothing that the code under test expects."""


def killed_at(last: int, do: Callable[[], object]) -> bool:
    """Does something of which so many steps on the disk come about, and no more; says whether it came to its end."""
    left = [last]

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return real(*arguments, **options)

        return step

    steps = ((os, "replace"), (shutil, "rmtree"), (Path, "mkdir"), (Path, "unlink"), (Path, "write_text"))
    with ExitStack() as patched:
        for place, name in steps:
            patched.enter_context(mock.patch.object(place, name, counting(getattr(place, name))))
        try:
            do()
        except Killed:
            return False
    return True


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_kill_at_any_moment_leaves_one_build_or_the_other(tmp_path: Path, again: bool) -> None:
    old, fewer = dict.fromkeys(PARTS, "old"), dict.fromkeys((name for name in PARTS if name != "adapter"), "new")

    def build(folder: BuildFolder) -> None:
        with folder.held():
            folder.replace(a_build("new", tuple(fewer)))  # type: ignore[arg-type]

    def hold(folder: BuildFolder) -> None:
        with folder.held():
            pass

    def check(folder: BuildFolder) -> None:
        """With a report all is of one build; and what this program reads is, always."""
        found = content(folder.path)
        assert found in (old, fewer) or REPORT not in found, found
        read = {name: folder._part(name).read_text() for name in ("facts.jsonl", REPORT)}
        assert set(read.values()) in ({"old"}, {"new"})

    for last in range(100):
        for second in range(100 if again else 1):
            folder = BuildFolder(tmp_path / f"{last}-{second}")
            with folder.held():
                folder.replace(a_build("old"))  # type: ignore[arg-type]
            done = killed_at(last, lambda folder=folder: build(folder))  # type: ignore[misc]
            check(folder)
            healed = not again or killed_at(second, lambda folder=folder: hold(folder))  # type: ignore[misc]
            check(folder)
            hold(folder)
            found = content(folder.path)
            assert found in (old, fewer)
            assert not [name for name in (NEW, OLD, READY) if (folder.path / name).exists()]
            if healed:
                break
        if done:
            assert found == fewer
            assert last > len(PARTS)
            return
    raise AssertionError("it never came to its end")


def test_whoever_may_read_a_part_may_read_all(tmp_path: Path) -> None:
    def write(new: Path) -> None:
        for name in ("report.json", "facts.jsonl"):
            (new / name).write_text("{}")
        (new / "facts.jsonl").chmod(0o600)  # as a library may write a file

    folder = BuildFolder(tmp_path / "built")
    with folder.held():
        folder.replace(write)
    assert len({(folder.path / name).stat().st_mode for name in ("report.json", "facts.jsonl")}) == 1
    assert (folder.path / "report.json").stat().st_mode & 0o400


@pytest.mark.parametrize("error", [OSError(28, "No space left"), SafetensorError("I/O error: No space left")])
def test_what_cannot_be_written_leaves_the_build(tmp_path: Path, error: Exception) -> None:
    folder = BuildFolder(tmp_path / "built")
    with folder.held():
        folder.replace(a_build("old"))  # type: ignore[arg-type]
        with pytest.raises(OSError, match=r"cannot be written \(.*No space left.*untouched"):
            folder.replace(mock.Mock(side_effect=error))
        assert content(folder.path) == dict.fromkeys(PARTS, "old")
        folder.replace(a_build("new"))  # type: ignore[arg-type]
    assert content(folder.path) == dict.fromkeys(PARTS, "new")


def facts(number: int, target: str = "Rome") -> list[Fact]:
    return [Fact(f"Tower {n}", "{} is in", target, id=f"fact-{n}") for n in range(number)]


def test_a_plan_in_words() -> None:
    before = [*facts(3), Fact("Old", "{} is in", "Bern", id="old")]
    now = [facts(1)[0], facts(2, "Oslo")[1], Fact("Tower 2", "{} is in", "Rome", id="fact-2", aliases=("Roma",))]
    now += [Fact(f"New {n}", "{} is in", "Rome", id=f"new-{n}") for n in range(MOST + 2)]
    plan = Plan.between(before, now)
    lines = list(in_words(plan, before, [now[1], *now[3:]]))
    assert lines[0] == "+ 22 new   ~ 2 changed   - 1 removed   = 1 kept   (23 to solve)"
    assert lines[1] == "+ new-0: New 0 is in Rome"
    assert lines[MOST + 1 :] == [
        "+ and 2 more",
        "~ fact-1: Tower 1 is in Oslo (was: Tower 1 is in Rome)",
        "~ fact-2: Tower 2 is in Rome (other prompts, aliases or old object)",
        "- old: Old is in Bern",
    ]
    again = next(in_words(plan, before, now))
    assert again.endswith("(25 to solve: 1 of them kept, and not solved in this way yet)")


def test_rules_of_acceptance() -> None:
    report = {
        "metrics": {"free_generation_strict": {"after": 0.94}, "perplexity_drift": {"after": 0.01}},
        "collisions": [{}],
        "keys_compared": True,
    }
    accept = AcceptSettings(efficacy=0.95, perplexity_drift=0.05, preservation=0.0, collisions=1)
    found = {rule["rule"]: (rule["found"], rule["passed"]) for rule in judge(accept, report)}
    assert found == {
        "efficacy": (0.94, False),
        "perplexity_drift": (0.01, True),
        "preservation": (None, False),  # a figure that was not measured passes no rule
        "collisions": (1, True),
    }
    said = [rule["said"] for rule in judge(accept, report)]
    assert said[0] == "efficacy 94.0, wanted at least 95.0 %"
    assert said[-1] == "collisions 1, wanted at most 1 pairs"
    assert judge(AcceptSettings(), report) == []
    [rule] = judge(AcceptSettings(collisions=1), report | {"keys_compared": False})
    assert (rule["found"], rule["passed"]) == (None, False)
    assert rule["said"].startswith("collisions not measured: this way of building compares no keys")
    with pytest.raises(SettingsError, match=r"job\.accept\.efficacy=95"):
        AcceptSettings(efficacy=95)
