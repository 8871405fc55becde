import json
import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from composed import composed
from omegaconf import DictConfig, OmegaConf

from corrigenda.runs.folder import RunFolder
from corrigenda.settings.documented import meanings
from jobs import Job, StoreJob
from jobs.lens import Job as LensJob
from jobs.shared.base import take_up
from jobs.shared.job import find_job, new_folder, run_folder
from jobs.shared.registry import classes, declaration


def of_job(name: str) -> DictConfig:
    """The group ``job`` as ``job=NAME`` makes it."""
    settings = composed(f"job={name}").job
    assert isinstance(settings, DictConfig)
    return settings


def seeds(part: Any) -> Iterator[Any]:
    """What stands as a seed in a configuration, at any depth."""
    if isinstance(part, dict):
        yield from (part[key] for key in part if key == "seed")
        for value in part.values():
            yield from seeds(value)


@pytest.mark.parametrize("name", ["edit", "explain", "lens", "trace", "tune"])
def test_every_seed_of_a_job_is_the_runs(name: str) -> None:
    config = OmegaConf.to_container(composed(f"job={name}", "seed=7").job, resolve=True)
    assert set(seeds(config)) == {7}


@pytest.mark.parametrize("name", classes())
def test_each_declaration_is_a_job_with_documented_settings(name: str) -> None:
    found, declared = find_job(of_job(name)), declaration(name)
    assert (type(found).__module__ in (f"jobs.{name}", f"jobs.{name}.job"), declared.name) == (True, name)
    assert isinstance(found, Job) != isinstance(found, StoreJob)
    assert {*of_job(name)} <= declared.names
    assert {field.name for field in fields(declared.settings)} <= {*meanings(declared.settings), "seed"}


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"job\.name=nuerons: .* did you mean neurons\? The jobs are ask, "):
        find_job({"name": "nuerons"})
    with pytest.raises(ValueError, match=r"job\.name=base: there is no such job; The jobs are"):
        find_job({"name": "base"})  # a file of the package, and no job
    with pytest.raises(ValueError, match=r"job\.name has no value"):
        find_job({"_target_": "my_job.Count"})


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("toy", "this is not the dotted path of a class"),
        ("no_such_package.toy.Job", "there is no module 'no_such_package'; is its folder on PYTHONPATH?"),
        ("jobs.edit.Toy", "jobs.edit has no class Toy derived from jobs.Job or jobs.StoreJob"),
        ("jobs.shared.job.find_job", "jobs.shared.job has no class find_job derived"),
    ],
)
def test_a_path_that_leads_nowhere(target: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"job._target_={target}: {says}".replace("?", r"\?")):
        find_job({"name": "toy", "_target_": target})


def test_what_a_job_from_outside_lacks_is_not_blamed_on_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy_job.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        find_job({"name": "toy", "_target_": "needy_job.Job"})


def test_what_cannot_be_logged_in_the_store_is_logged_where_the_user_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, logs, others = of_job("runs"), tmp_path / "outputs/.jobs", set[Path]()
    logs.mkdir(parents=True)
    (logs / "run.log").touch()
    monkeypatch.setattr(os, "access", lambda path, _: path not in others)
    assert run_folder(None, f"{tmp_path}/outputs", asked) == str(logs)
    elsewhere = set()
    for user, place in ((1, logs), (1, logs / "run.log"), (1, logs.parent), (2, logs.parent)):
        others = {place}
        monkeypatch.setattr(os, "getuid", lambda user=user: user, raising=False)
        elsewhere.add(run_folder(None, f"{tmp_path}/outputs", asked))
    assert len(elsewhere) == 2
    assert not any(Path(folder).is_relative_to(tmp_path) for folder in elsewhere)


def test_a_run_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ("model", "data", "editor", "eval", "logger", "job", "choices")
    (tmp_path / "config.yaml").write_text("mode: single\nseed: 0\n" + "".join(f"{group}: {{}}\n" for group in groups))
    (tmp_path / "run.log").touch()
    asked = of_job("edit")
    assert run_folder(str(tmp_path), "outputs", asked) == str(tmp_path)
    for place in (tmp_path, tmp_path / "run.log"):
        monkeypatch.setattr(os, "access", lambda path, _, place=place: path != place)
        with pytest.raises(PermissionError, match=r"resume=.*: this folder cannot be written; go on with a copy"):
            run_folder(str(tmp_path), "outputs", asked)


def test_a_run_goes_where_the_store_is_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(new_folder(f"{tmp_path}/100%done")).is_relative_to(tmp_path / "100%done")
    monkeypatch.chdir(tmp_path)
    assert not Path(new_folder("")).is_absolute()  # as `Store("")`: here, and not at the root of the disk


def test_a_run_without_an_id_says_and_notes_other_code(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, folder = composed("job=lens"), RunFolder(tmp_path)
    folder.begin("")
    take_up(LensJob(), config, folder, model_fingerprint="a")
    begun = folder.identity
    assert (begun["model_fingerprint"], caplog.text) == ("a", "")
    folder.go_on_with(code="another")
    for _ in range(2):  # the second time it is known
        take_up(LensJob(), config, folder, model_fingerprint="a")
    assert folder.identity == begun | {"code": f"another+{begun['code']}"}
    assert caplog.text.count("the code has changed since") == 1
    with pytest.raises(ValueError, match="begun with another model_fingerprint"):
        take_up(LensJob(), config, folder, model_fingerprint="b")


def test_a_run_that_goes_on_with_another_library_says_and_notes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, folder, path = composed("job=lens"), RunFolder(tmp_path), tmp_path / "versions.json"
    folder.begin("")
    take_up(LensJob(), config, folder, model_fingerprint="a")
    now = json.loads(path.read_text())
    assert (caplog.text, "later" in now) == ("", False)
    begun = now | {"versions": now["versions"] | {"torch": "1.0.0"}}
    path.write_text(json.dumps(begun))
    for _ in range(2):  # the second time it is known
        take_up(LensJob(), config, folder, model_fingerprint="a")
    assert caplog.text.count(f"goes on with another torch ({now['versions']['torch']}, before 1.0.0)") == 1
    noted = json.loads(path.read_text())
    [later] = noted.pop("later")
    assert (noted, later["versions"]) == (begun, now["versions"])
