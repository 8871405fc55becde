import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import runs_in

import run  # noqa: F401 - it registers the resolvers, as the program does
from corrigenda.runs.records import write_digests
from corrigenda.runs.store import Store
from eval.leaderboard import add_submission, leaderboard, write_leaderboard
from jobs.runs import runs_table

ATTACKS = (
    "${run_folder:null,%s,{name:x,_target_:stranger.Job}}",
    "${new_folder:%s}",
    "${oc.env:HOME}",
    "${mode}",
    "${",
)


def test_the_settings_of_a_submission_are_text(
    tmp_path: Path, make_run: Any, submission: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run("rome", [True] * 40)
    (tmp_path / "stranger.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    store, made = Store(tmp_path / "outputs"), tmp_path / "made"
    config = {f"a{number}": text.replace("%s", str(made)) for number, text in enumerate(ATTACKS)}
    theirs = submission() | {"config": {**config, "_target_": "os.system", **{config["a0"]: 1}}, "by": config["a1"]}
    path = tmp_path / "submission.json"
    path.write_text(json.dumps(theirs))
    folder = add_submission(path, store)
    [found] = [each for each in store.runs() if each.path == folder]
    assert found.state == "finished"
    assert found.config["editor"] == theirs["config"]
    write_leaderboard(leaderboard(store.runs()), tmp_path / "page")
    assert config["a1"] in (tmp_path / "page/leaderboard.json").read_text()
    assert not made.exists()
    assert not (tmp_path / "imported").exists()


def test_a_page_of_names_that_are_code(tmp_path: Path, make_run: Any) -> None:
    evil = "</script><img src=x onerror=alert(1)>`|[x](javascript:alert(1))"
    make_run(evil, [True] * 30, name="javascript:alert(1)", settings={evil: evil})
    folder = tmp_path / "outputs"
    written = write_leaderboard(leaderboard(Store(folder).runs()), folder)
    page, text = (next(path for path in written if path.suffix == suffix).read_text() for suffix in (".html", ".md"))
    assert "<img" not in page
    assert "<img" not in text.replace("\\<img", "")
    assert '"path":"./javascript:alert(1)"' in page  # a folder beside the page, no address of a script


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in a value, outer ones too."""
    yield place
    if isinstance(value, (dict, list)):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*place, name))


NUMBERS = st.sampled_from([-2, 0, 1, 2, 10**18, 1e308, -1e-320, 0.5])
TEXTS = st.sampled_from(["", "x", "${new_folder:x}", "single", "2026", "\u202e", "../../x", "/etc/passwd"])
OBJECTS = st.dictionaries(st.sampled_from(["a", "t", "name"]), NUMBERS, max_size=2)
ODD = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.lists(NUMBERS, max_size=2), OBJECTS)


def spoilt(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    """A value with something else at a place; nothing there where `odd` is "gone"."""
    if not place:
        return odd
    value = copy.deepcopy(value)
    inner = value
    for name in place[:-1]:
        inner = inner[name]
    if odd == "gone":
        del inner[place[-1]]
    else:
        inner[place[-1]] = odd
    return value


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory, few_samples: None) -> Path:
    root = tmp_path_factory.mktemp("store")
    make = runs_in(root)
    make("rome", [True] * 6, [True] * 4 + [False] * 2)
    make("theirs", [True] * 6, mode="sequential", curve=True, regime="stack", name="theirs")
    return root / "outputs"


def attack(store: Path, data: st.DataObject) -> None:
    """Puts something else into one place of a run, with digests that fit, and looks at the store."""
    theirs = store / "theirs"
    name = data.draw(
        st.sampled_from(["summary.json", "config.yaml", "identity.json", "cases.jsonl", "retention.jsonl"])
    )
    path, before = theirs / name, (theirs / name).read_bytes()
    digests = (theirs / "records.sha256").read_bytes()
    if name.endswith(".jsonl"):
        first, rest = before.split(b"\n", 1)
        value = json.loads(first)
    else:
        value = json.loads(before) if name.endswith(".json") else yaml.safe_load(before)
    place = data.draw(st.sampled_from(sorted(leaves(value), key=str)))
    found = spoilt(value, place, data.draw(st.one_of(ODD, st.just("gone")) if place else ODD))
    try:
        if name.endswith(".jsonl"):
            path.write_bytes(json.dumps(found).encode() + b"\n" + rest)
        else:
            path.write_text(json.dumps(found))
        write_digests(theirs)
        runs = Store(store).runs()
        assert {run.path.name: run.state for run in runs}["rome-0-0-single"] == "finished"
        assert runs_table(Store(store)).row_count == len(runs)
        board = leaderboard(runs, min_facts=3)
        assert any(row.label == "rome" for one in board.boards for row in one.rows)
        write_leaderboard(board, store.parent / "page")
    finally:
        path.write_bytes(before)
        (theirs / "records.sha256").write_bytes(digests)


FORMS = {"suppress_health_check": list(HealthCheck)}


@settings(max_examples=25, **FORMS)
@given(st.data())
def test_one_bad_run_does_not_end_the_list_or_the_tables(two_runs: Path, data: st.DataObject) -> None:
    attack(two_runs, data)


@pytest.mark.nightly
@settings(max_examples=2000, derandomize=False, **FORMS)
@given(st.data())
def test_one_bad_run_does_not_end_them_deep(two_runs: Path, data: st.DataObject) -> None:
    attack(two_runs, data)
