import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

import run  # noqa: F401 - it registers the resolvers, as the program does
from editing.configuration import configuration
from editing.registry import EDITORS
from jobs.shared.job import stored_config
from jobs.shared.registry import classes as job_classes
from jobs.shared.registry import declaration
from jobs.shared.trust import require_trusted

ROOT = Path(__file__).parents[3]

STORED: dict[str, Any] = {
    "model": {"name": "tiny", "trust_remote_code": False},
    "data": {"path": None, "schema": "auto"},
    "editor": {"_target_": "editing.Rome", "text": {"_target_": "corrigenda.moments.text.Text"}},
    "eval": {"_target_": "eval.EvalSettings"},
    "logger": {"name": "none"},
    "job": {"name": "edit"},
    "mode": "single",
    "seed": 0,
    "plugins": [],
    "choices": {"editor": "rome"},
}


def stored(folder: Path, **parts: Any) -> Any:
    (folder / "config.yaml").write_text(yaml.safe_dump(STORED | parts))
    return stored_config(folder, f"resume={folder}")


@pytest.mark.parametrize(
    ("parts", "place"),
    [
        ({"editor": {"layer": "${new_folder:%s}"}}, "editor.layer"),
        ({"job": {"name": "edit", "x": [1, {"y": "a ${oc.env:HOME}"}]}}, r"job\.x\[1\]\.y"),
        ({"seed": "${"}, "seed"),
        ({"data": {"${run_folder:null,%s,{}}": 1}}, "data"),
    ],
)
def test_nothing_is_interpolated(tmp_path: Path, parts: dict[str, Any], place: str) -> None:
    made = tmp_path / "made"
    text = yaml.safe_dump(STORED | parts).replace("%s", str(made))
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"config\.yaml there has \$\{{\.\.\.\}} in {place}, which no stored"):
        stored_config(tmp_path, "resume=x")
    assert not made.exists()


def test_a_group_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"resume=.*: config\.yaml there: eval, job should hold named values"):
        stored(tmp_path, job=[1], eval=None)


@pytest.mark.parametrize(
    ("parts", "said", "words"),
    [
        ({"editor": {"_target_": "os.system", "command": "x"}}, "is code from outside", ["editor._target_=os.system"]),
        ({"editor": {"_target_": "stranger.Editor"}}, "is code from outside", ["editor._target_=stranger.Editor"]),
        (
            {"editor": {"_target_": "corrigenda.system.files.write_text", "path": "x"}},  # ours, and it writes
            "is code from outside",
            ["editor._target_=corrigenda.system.files.write_text"],
        ),
        (
            {"eval": {"_target_": "eval.EvalSettings", "a": [{"_target_": "corrigenda.runs.folder.RunFolder"}]}},
            "is code from outside",
            ["++eval.a.0._target_=corrigenda.runs.folder.RunFolder"],
        ),
        ({"plugins": ["a", "b"]}, "imports modules", ["plugins=[a,b]"]),
        ({"data": {"schema": "stranger.parse"}}, "is code from outside", ["data.schema=stranger.parse"]),
        ({"model": {"trust_remote_code": True}}, "runs code that comes with", ["model.trust_remote_code=true"]),
        ({"job": {"result": "os.path"}}, "is code from outside", ["++job.result=os.path"]),
        (
            {"eval": {"real_use": {"judge": {"url": "http://x", "key": "HOME"}}}},
            "sends what this environment variable holds",
            ["++eval.real_use.judge.key=HOME"],
        ),
        ({"eval": {"harness_folder": "/x"}}, "runs code of the harness", ["++eval.harness_folder=/x"]),
    ],
)
def test_code_of_others_has_to_stand_in_the_command(
    tmp_path: Path, parts: dict[str, Any], said: str, words: list[str]
) -> None:
    found, command = stored(tmp_path, **parts), OmegaConf.create(STORED)
    require_trusted(stored(tmp_path), command, "resume=x")
    found = stored(tmp_path, **parts)
    with pytest.raises(ValueError, match=f"resume=x: .* in config.yaml there {said}") as caught:
        require_trusted(found, command, "resume=x")
    assert shlex.split(str(caught.value).partition("if you trust that run, add ")[2]) == words
    for word in words:
        name, _, value = word.lstrip("+").partition("=")
        OmegaConf.update(command, name, yaml.safe_load(value), force_add=True) if ".0." not in name else None
    if not any(".0." in word for word in words):
        require_trusted(found, command, "resume=x")


def test_what_comes_with_the_project_is_trusted(tmp_path: Path) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "conf").rglob("*.yaml"))
    text += "\n".join(yaml.safe_dump(configuration(name)) for name in EDITORS.declared)
    text += "\n".join(yaml.safe_dump(declaration(name).configuration) for name in job_classes())
    classes = set(re.findall(r"_target_: ([\w.]+)", text))
    assert len(classes) > 30
    editor = {f"a{number}": {"_target_": name} for number, name in enumerate(sorted(classes))}
    require_trusted(stored(tmp_path, editor=editor), OmegaConf.create(STORED), "resume=x")
    for name in re.findall(r"^result: (\w+\.[\w.]+)", text, re.MULTILINE):
        require_trusted(stored(tmp_path, job={"result": name}), OmegaConf.create(STORED), "resume=x")


@pytest.mark.parametrize("target", ["eval.AlarmSettings", "eval.protocols.alarm.AlarmSettings"])
def test_a_run_with_a_class_that_there_is_no_more_is_refused(tmp_path: Path, target: str) -> None:
    """Not as another's code, which to trust would not help."""
    found = stored(tmp_path, job={"name": "edit", "sequential": {"alarm": {"_target_": target}}})
    with pytest.raises(ValueError, match=rf"alarm\._target_={target} in config\.yaml there: this version has no such"):
        require_trusted(found, OmegaConf.create(STORED), "resume=x")
