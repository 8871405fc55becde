import errno
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from folder_parts import CONFIG, begun, record, summary, unexpected
from malformed_parts import refused
from rich.console import Console

import corrigenda
from corrigenda.runs import store as store_module
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.ids import code_version, essential, files_named, run_id
from corrigenda.runs.records import count_records, records_in
from corrigenda.runs.store import Store, StoredRun, read_run
from jobs.runs import runs_table


def finished(path: Path, run: str = "1", cases: int = 3) -> RunFolder:
    folder = begun(path, {"id": run}, cases)
    folder.finish(summary(cases))
    return folder


def test_the_id_is_of_what_matters() -> None:
    same = run_id(CONFIG, "data", "model", "code")
    assert len(same) == 16
    changed = {
        "logger": {"name": "wandb"},
        "resume": "x",
        "force": True,
        "store": "elsewhere",
        "choices": {"data": "x"},
    }
    moved = {"data": {"path": "/other/facts.jsonl"}, "model": {**CONFIG["model"], "name": "/other/tiny"}}
    assert run_id({**CONFIG, **changed, **moved}, "data", "model", "code") == same
    assert run_id(dict(reversed(CONFIG.items())), "data", "model", "code") == same
    for key, value in (("seed", 1), ("mode", "batch"), ("editor", {**CONFIG["editor"], "layer": 2})):
        assert run_id({**CONFIG, key: value}, "data", "model", "code") != same
    assert run_id({**CONFIG, "model": {**CONFIG["model"], "dtype": "bfloat16"}}, "data", "model", "code") != same
    for fingerprints in (("other", "model", "code"), ("data", "other", "code"), ("data", "model", "other")):
        assert run_id(CONFIG, *fingerprints) != same
    assert CONFIG["model"]["name"] == "tiny"  # nothing was changed in place
    assert set(essential(CONFIG)) == {"mode", "seed", "editor", "model", "eval", "job"}
    assert essential({**CONFIG, "workers": {"number": 2}}) == essential(CONFIG)
    assert essential({**CONFIG, "editor": {**CONFIG["editor"], "workers": {"number": 2}}}) == essential(CONFIG)


def test_what_a_configuration_names_counts_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, run = tmp_path / "facts.jsonl", tmp_path / "run"
    config = {"name": "wise", "unrelated": {"facts": str(facts), "limit": 3}, "layers": [str(run)]}
    assert files_named(config) == ""
    facts.write_text("one")
    first = files_named(config)
    facts.write_text("two")
    second = files_named(config)
    (run / "edits" / "0000-a").mkdir(parents=True)
    (run / "edits" / "0000-a" / "edit.json").write_text("{}")
    third = files_named(config)
    assert len({"", first, second, third}) == 4
    assert files_named(config) == third
    assert files_named({"text": "x" * 5000, "none": None, "bad": "a\0b"}) == ""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files_named("~/facts.jsonl") == files_named(str(facts)) != ""
    samples = tmp_path / "samples"  # a folder of facts, as LRE is given one
    samples.mkdir()
    (samples / "capital.json").write_text("[1]")
    first = files_named({"editor": {"samples": str(samples)}})
    (samples / "capital.json").write_text("[2]")
    assert "" != first != files_named({"editor": {"samples": str(samples)}})


def test_the_code_version_is_of_the_files_that_make_figures(tmp_path: Path) -> None:
    for name in (
        "corrigenda/edits/edit.py",
        "corrigenda/runs/store.py",
        "editing/locate_then_edit/rome.py",
        "eval/leaderboard/page.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a = 1\n")
    first = code_version(tmp_path)
    (tmp_path / "eval/leaderboard/page.py").write_text("a = 2\n")
    (tmp_path / "corrigenda/runs/store.py").write_text("a = 2\n")
    (tmp_path / "notes.py").write_text("")
    assert code_version(tmp_path) == first
    (tmp_path / "editing/locate_then_edit/rome.py").write_text("a = 2\n")
    second = code_version(tmp_path)
    (tmp_path / "editing/memory_based/wise").mkdir(parents=True)
    (tmp_path / "editing/locate_then_edit/rome.py").rename(tmp_path / "editing/memory_based/wise/wise.py")
    assert len({first, second, code_version(tmp_path)}) == 3
    assert code_version() == code_version(Path(corrigenda.__file__).parents[1])


def test_records_come_back_bit_for_bit(tmp_path: Path) -> None:
    folder, records = begun(tmp_path, {"id": "1"}, 3), [record(number) for number in range(4)]
    lines = (tmp_path / "cases.jsonl").read_bytes()
    for _ in range(2):
        assert json.dumps(list(folder.cases())) == json.dumps(records[:3])  # also their order, and 1.0 is not 1
        assert count_records(tmp_path) == 3
        folder.finish(summary(3))
        assert (tmp_path / "cases.jsonl").read_bytes() == lines
    (tmp_path / "summary.json").unlink()
    assert read_run(tmp_path).state == "unfinished"
    folder.append(records[3])
    folder.finish(summary(4))
    assert read_run(tmp_path).state == "finished"
    assert json.dumps(list(records_in(tmp_path))) == json.dumps(records)


def test_whole_numbers_among_the_figures_come_back_as_they_were(tmp_path: Path) -> None:
    """A submission may say that an edit took 2 seconds; finishing must not make its records unreadable."""
    folder = RunFolder(tmp_path)
    folder.append(record(0) | {"seconds": 2, "after": {"prompts": {"prompt": [{"n": 1}]}, "values": {"x": 1}}})
    folder.finish({})
    (found,) = folder.cases()
    assert (found["seconds"], found["after"]["values"]) == (2.0, {"x": 1.0})
    assert found["after"]["prompts"] == {"prompt": [{"n": 1}]}


def test_a_run_without_records_is_finished(tmp_path: Path) -> None:
    nothing, empty = RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b")
    (empty.path / "cases.jsonl").touch()
    for folder in (nothing, empty):
        folder.finish({})
        assert list(folder.cases()) == []
        assert count_records(folder.path) == 0


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    finished(tmp_path, cases=5)
    path = tmp_path / "cases.jsonl"
    content = path.read_bytes()
    for place in range(0, len(content), 17):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        refused(ValueError, r"cases\.jsonl: damaged", list, records_in(tmp_path))
        assert read_run(tmp_path).state == "damaged"
    path.write_bytes(content)
    assert len(list(records_in(tmp_path))) == 5
    (tmp_path / "records.sha256").write_bytes(b"\xff\n")
    refused(ValueError, r"cases\.jsonl: damaged", list, records_in(tmp_path))


def test_finished_is_not_run_again_unless_forced(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finished(tmp_path / "2026-01-01" / "a")
    assert len(store.runs()) == 1
    with store.take({"id": "1"}, unexpected) as taken:
        assert isinstance(taken, StoredRun)
        assert (taken.state, taken.path) == ("finished", tmp_path / "2026-01-01" / "a")
    with store.take({"id": "2"}, lambda: new_run(tmp_path / "b")) as taken:
        assert isinstance(taken, RunFolder)
        assert taken.path == tmp_path / "b"
    with store.take({"id": "1"}, lambda: new_run(tmp_path / "c"), force=True) as taken:
        assert isinstance(taken, RunFolder)
        assert taken.path == tmp_path / "c"
    assert [run.id for run in store.runs()].count("1") == 2


def new_run(path: Path, **config: object) -> RunFolder:
    folder = RunFolder(path)
    folder.begin(yaml.safe_dump(CONFIG | config))
    return folder


def take(root: Path, name: str, force: bool, n: int = 0, finish: bool = False) -> tuple[str, str]:
    """The folder that was taken in hand, or found, and what it was found to be; adds `n` cases to it."""

    with Store(root).take(
        {"id": "1"}, lambda: new_run(root / name, force=force, job={"name": "trace"}), force
    ) as taken:
        if not isinstance(taken, RunFolder):
            return taken.path.name, taken.state
        for number in range(n):
            taken.append({"id": str(number)})
        if finish:
            taken.finish({"n": 1})
        return taken.path.name, "taken"


def test_a_forced_run_that_was_cut_short_goes_on_by_the_same_command(tmp_path: Path) -> None:
    assert take(tmp_path, "first", force=False) == ("first", "taken")
    assert take(tmp_path, "second", force=True) == ("second", "taken")  # not the first, which was not begun so
    assert take(tmp_path, "third", force=True) == ("second", "taken")


def test_a_forced_run_beside_a_finished_one(tmp_path: Path) -> None:
    assert take(tmp_path, "first", force=False, n=1, finish=True) == ("first", "taken")
    assert take(tmp_path, "second", force=True, n=1) == ("second", "taken")
    assert take(tmp_path, "third", force=False) == ("first", "finished")
    assert take(tmp_path, "third", force=True, finish=True) == ("second", "taken")
    assert take(tmp_path, "third", force=True) == ("third", "taken")  # both are finished: once more


def test_a_forced_run_beside_a_running_one(tmp_path: Path) -> None:
    with Store(tmp_path).take({"id": "1"}, lambda: new_run(tmp_path / "first", force=True), True) as taken:
        assert isinstance(taken, RunFolder)
        assert take(tmp_path, "second", force=True) == ("first", "running")


def test_find_prefers_the_finished_and_then_the_furthest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name, run, cases, ends, expected in (
        ("a", "1", 1, False, "a"),
        ("b", "1", 3, False, "b"),
        ("c", "2", 5, False, "b"),
        ("d", "1", 3, True, "d"),
        ("e", "1", 3, True, "e"),
    ):
        folder = begun(tmp_path / name, {"id": run}, cases)
        if ends:
            folder.finish(summary(cases))
        found = store.find("1")
        assert found.path.name == expected
    assert store.find("") is None


def test_who_begins_a_run_reads_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        begun(tmp_path / name, {"id": name}, 1)
    (tmp_path / "c" / "identity.json").write_text("{")
    read: list[str] = []
    monkeypatch.setattr(store_module, "read_run", lambda path: (read.append(path.name), read_run(path))[1])
    with Store(tmp_path).take({"id": "b"}, lambda: new_run(tmp_path / "d"), force=True) as taken:
        assert isinstance(taken, RunFolder)
    assert set(read) == {"b"}


Damage = Callable[[Path], object]
DAMAGES: dict[str, Damage] = {
    "summary.json cannot be read": lambda run: (run / "summary.json").write_text('{"editor": "ro'),
    "config.yaml cannot be read": lambda run: (run / "config.yaml").write_text("a: [1, 2\nb: }"),
    "identity.json cannot be read": lambda run: (run / "identity.json").write_bytes(b"\xff\xfe\x00"),
    "of 3 facts, but there are records of 0": lambda run: (run / "cases.jsonl").unlink(),
    "cases.jsonl: damaged": lambda run: os.truncate(run / "cases.jsonl", (run / "cases.jsonl").stat().st_size // 2),
    "config.yaml is missing": lambda run: (run / "config.yaml").unlink(),
    "config.yaml: choices, model should hold named values": lambda run: (run / "config.yaml").write_text(
        "choices: [1]\nmodel: tiny\nmode: single\n"
    ),
}


@pytest.mark.parametrize("problem", DAMAGES)
def test_damage_stays_with_its_run(tmp_path: Path, problem: str) -> None:
    for name in ("a", "b", "c"):
        finished(tmp_path / name, name)
    DAMAGES[problem](tmp_path / "b")
    found = {run.path.name: run for run in Store(tmp_path).runs()}
    assert [found[name].state for name in "abc"] == ["finished", "damaged", "finished"]
    assert problem in found["b"].problem
    assert len(found["a"].cases()) == 3
    assert Store(tmp_path).find("b") is None
    assert runs_table(Store(tmp_path)).row_count == 3


def test_a_half_written_run_is_unfinished(tmp_path: Path) -> None:
    folder = begun(tmp_path / "a", {"id": "1"}, 2)
    with (folder.path / "cases.jsonl").open("a") as file:
        file.write('{"id": "cut off in the wri')
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.yaml").write_text("seed: 0\n")  # killed before it knew what it works on
    content = (folder.path / "cases.jsonl").read_bytes()
    found = {run.path.name: run for run in Store(tmp_path).runs()}
    assert (found["a"].state, found["a"].done, len(found["a"].cases())) == ("unfinished", 2, 2)
    assert (found["b"].state, found["b"].done, found["b"].id) == ("unfinished", 0, "")
    assert (folder.path / "cases.jsonl").read_bytes() == content  # looking changes nothing


def test_an_empty_or_missing_store(tmp_path: Path) -> None:
    assert Store(tmp_path).runs() == Store(tmp_path / "nothing").runs() == []
    assert Store(tmp_path).find("1") is None


def test_runs_come_oldest_first(tmp_path: Path) -> None:
    for name, begun_at in (("a", "2026-03-01T00:00:00"), ("b", "2026-01-01T00:00:00"), ("c", "2026-02-01T00:00:00")):
        finished(tmp_path / name)
        (tmp_path / name / "versions.json").write_text(json.dumps({"begun": begun_at}))
    assert [run.path.name for run in Store(tmp_path).runs()] == ["b", "c", "a"]
    # Another machine may have written the time zone, too.
    (tmp_path / "c" / "versions.json").write_text(json.dumps({"begun": "2026-05-01T00:00:00+02:00"}))
    assert [run.path.name for run in Store(tmp_path).runs()] == ["b", "a", "c"]
    (tmp_path / "b" / "versions.json").unlink()
    assert abs(read_run(tmp_path / "b").when.timestamp() - time.time()) < 600


def test_identity(tmp_path: Path) -> None:
    folder = begun(tmp_path / "a", {"id": "1", "model_fingerprint": "x", "code": "old"})
    refused(ValueError, "begun with another model_fingerprint", folder.identify, id="1", model_fingerprint="y")
    folder.go_on_with(code="old+new", id="2")
    assert folder.identity == {"id": "2", "model_fingerprint": "x", "code": "old+new"}
    assert RunFolder(tmp_path / "b").identity == {}


def test_runs_of_other_jobs_have_no_cases(tmp_path: Path) -> None:
    folder = begun(tmp_path / "a", {"model_fingerprint": "x"}, job={"name": "trace"})
    folder.finish({"suggested_layers": [3]})
    [run] = Store(tmp_path).runs()
    assert (run.state, run.job, run.id) == ("finished", "trace", "")


def test_settings_of_the_job_count_only_where_they_are_used() -> None:
    job = {"name": "edit", "sequential": {"checkpoints": [1]}, "locality": {"limit": 3}, "auto_layer": {"facts": 3}}
    assert essential({**CONFIG, "job": job})["job"] == {"name": "edit"}
    assert set(essential({**CONFIG, "mode": "sequential", "job": job})["job"]) == {"name", "sequential", "locality"}
    for field in ("layer", "layers"):
        auto = {**CONFIG, "editor": {field: "auto"}, "job": job}
        assert set(essential(auto)["job"]) == {"name", "auto_layer"}


def test_the_table_of_runs(tmp_path: Path) -> None:
    finished(tmp_path / "a")
    begun(tmp_path / "b", {"id": "2"}, 1)
    finished(tmp_path / "c")
    DAMAGES["summary.json cannot be read"](tmp_path / "c")
    console = Console(file=io.StringIO(), width=200)
    console.print(runs_table(Store(tmp_path)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("3/3 │ finished", "1 │ unfinished", "damaged: summary.json cannot be read"):
        assert part in text


Lines = list[bytes]
LINES: dict[str, tuple[Callable[[Lines], Lines], list[int], int]] = {
    "changed number": (lambda lines: [lines[0], lines[1].replace(b"1", b"2", 1), *lines[2:]], [1], 1),
    "copied": (lambda lines: [*lines, lines[1]], [], 1),
    "gone": (lambda lines: lines[:1] + lines[2:], [1, 2], 1),
    "swapped": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], [2, 3], 2),
    # Where a line's seal is gone, nothing says any more that the next one stood below it.
    "without fields": (lambda lines: [lines[0], b"{}\n", *lines[2:]], [1, 2], 2),
    "no JSON": (lambda lines: [lines[0], lines[1][:9] + b"\n", *lines[2:]], [1, 2], 2),
    # Whether lines are looked at does not hang on the first one.
    "no seal above": (
        lambda lines: [lines[0][: lines[0].rfind(b', "seal"')] + b"}\n", lines[1].replace(b"1", b"2", 1), *lines[2:]],
        [0, 1],
        2,
    ),
}
"""Damage to lines, the cases that are lost by it, and how many warnings say so."""


@pytest.mark.parametrize("damage", LINES)
def test_a_damaged_line_of_a_run_under_way_is_named_and_done_again(tmp_path: Path, damage: str) -> None:
    change, lost, n_warnings = LINES[damage]
    folder, cases = new_run(tmp_path / "run"), [{"id": str(n), "value": 10 + n} for n in range(5)]
    for case in cases:
        folder.append(case)
    file = folder.path / "cases.jsonl"
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))
    assert read_run(folder.path).state == "damaged"
    refused(ValueError, r"cases\.jsonl, line \d: damaged \(.*\); go on with the run", folder.finish, {})
    assert not (folder.path / "summary.json").exists()
    with pytest.warns(UserWarning, match=r"cases\.jsonl, line \d: damaged \(.*\); that case is done again") as warned:
        left = list(folder.cases())
    assert left == [case for n, case in enumerate(cases) if n not in lost]
    assert len(warned) == n_warnings
    for n in lost:
        folder.append(cases[n])
    folder.finish({})
    assert sorted(records_in(folder.path), key=lambda case: case["id"]) == cases


def test_lines_of_an_earlier_version_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "cases.jsonl").write_text('{"id": "1"}\n{"id": "2"}\n')
    assert [case["id"] for case in folder.cases()] == ["1", "2"]
    folder.append({"id": "3"})  # and are sealed when the run goes on
    assert [case["id"] for case in folder.cases()] == ["1", "2", "3"]
    path = tmp_path / "cases.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"2"', b'"4"', 1))
    with pytest.warns(UserWarning, match="line 2: damaged"):
        assert [case["id"] for case in folder.cases()] == ["1", "3"]


def test_what_could_not_be_added_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path, {"id": "1"}, cases=1)
    before = (tmp_path / "cases.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        refused(OSError, r"no space left on the disk; make room.*cases\.jsonl", folder.append, record(1))
    assert (tmp_path / "cases.jsonl").read_bytes() == before
    folder.append(record(1))
    assert [case["id"] for case in records_in(tmp_path)] == ["fact-0", "fact-1"]
