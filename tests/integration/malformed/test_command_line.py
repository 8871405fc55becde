from pathlib import Path

import program
import pytest

PARTS = ("model", "data", "editor", "eval", "logger", "job", "mode", "seed", "choices")

LINES: dict[str, tuple[list[str], str]] = {
    "editor": (["editor=roem"], "editor=roem: there is no such editor; did you mean rome"),
    "editor-far": (["editor=xyz"], "editor=xyz: there is no such editor; The editors are"),
    "model": (["model=smollm"], "model=smollm: there is no such choice; did you mean smollm2-135m?"),
    "job": (["job=edti"], "job=edti: there is no such choice; did you mean edit?"),
    "launcher": (["launcher=joblb"], "launcher=joblb: there is no such choice; did you mean joblib?"),
    "setting": (["editor.lyer=1"], "editor.lyer: there is no such setting; did you mean editor.layer"),
    "setting-job": (["job.most_failure=1"], "job.most_failure: there is no such setting; did you mean job.most_f"),
    "setting-top": (["sed=1"], "sed: there is no such setting; did you mean seed"),
    "group": (["editr=rome"], "editr: there is no such setting; did you mean editor"),
    "group-far": (["qqqqq=1"], "qqqqq: there is no such setting; python run.py --cfg job lists them"),
    "mode": (["mode=all"], "mode='all' must be one of single, batch, sequential"),
    "mode-null": (["mode=null"], "mode=None must be one of single, batch, sequential"),
    "saved": (
        ["editor=saved"],
        "editor.run has no value: give editor.run=... (the folder of a run with ``save_edits=true``)",
    ),
    "saved-nothing": (["editor=saved", "editor.run=."], "saved: . holds no edits"),
    "survey": (
        ["job=survey"],
        "job.locator._target_ has no value: give job.locator._target_=... (its class (module.Class))",
    ),
    "ask": (["ask", "model=own"], "job.prompt has no value: give prompt=... (a prompt, or a list of them)"),
    "build": (["build"], "job.folder has no value: give job.folder=... (where the build goes, and what was solved is"),
    "ask-nothing": (["ask", " "], "job.prompt=' ' must not be empty"),
    "verify": (["verify", "url=http://x/v1"], "list has no value: give list=..."),
    "verify-url": (["verify", "list.jsonl"], "url has no value: give url=..."),
    "capacity": (["capacity", "job.ways=[grace_wide]"], "leave job.ways out and give editor=grace_wide"),
    "capacity-both": (
        ["capacity", "job.ways=[rome]", "editor.layer=3"],
        "defaults, and editor.layer no effect; leave one",
    ),
    "lens": (["job=lens", "job.parts=[agreement]"], "job.parts: 'agreement' needs triggers before it"),
    "lens-part": (["job=lens", "job.parts=[trigers]"], "job.parts: there is no part 'trigers'; did you mean triggers"),
    "lens-twice": (["job=lens", "job.parts=[triggers,triggers]"], "job.parts names 'triggers' twice"),
    "lens-none": (["job=lens", "job.parts=[]"], "job.parts=[] names no part; the parts are values, triggers"),
    "tune-mode": (["tune", "mode=sequential"], "mode=sequential: settings are tuned with mode=single or mode=batch"),
    "tune-auto": (["tune", "editor.layer=auto"], "job=tune finds the layers itself: leave editor.layer=auto"),
    "tune-name": (["tune", "job.model=a/b"], "job.model='a/b' becomes the name of a file"),
    "tune-letters": (["tune", "job.model='modèle'"], "job.model='modèle' becomes the name of a file"),
    "tune-own": (["tune", "job.model=qwen2.5-coder-0.5b"], "is this project's own, which goes before a tuned one"),
    "sweep": (["editor=rome,memit"], " -m;"),
    "sweep-setting": (["-m", "editor=rome,memit", "editor.layer=1,2"], "editor.layer: not all choices of this sweep"),
    "tune-drift": (["tune", "eval.perplexity_windows=0"], "job.most_drift=0.1: eval.perplexity_windows=0 measures no"),
    "own-setting": (["ask", "A city is", "edti=x"], "edti: there is no such setting; did you mean edit or editor?"),
    "model-other": (["model=gpt2"], "smollm2-135m. Any other model is model=own model.name=gpt2"),
    "model-folder": (["model=a/b/c"], "model=a/b/c: there is no such choice; The choices are own, "),
    "data-file": (["data=a/file.csv"], "A file of facts is given as data=facts data.path=a/file.csv"),
    "editor-none": (["editor=own", "editor._target_=my_bad.Bad"], "my_bad.Bad: this is no editor; it lacks name"),
    "job-name": (["job.name=edti"], "job.name=edti: there is no such job; did you mean edit?"),
    "job-target": (["+job._target_=x"], "job._target_=x: this is not the dotted path of a class"),
    "job-module": (["+job._target_=nowhere.Job"], "there is no module 'nowhere'; is its folder on PYTHONPATH?"),
    "editor-target": (["editor._target_=nowhere.Editor"], "editor._target_=nowhere.Editor: there is no such class"),
    "editor-setting": (["+editor.foo=1"], "editing.Rome has no setting foo"),
    "model-setting": (["+model.devise=cpu"], "model.devise: there is no such setting; did you mean device?"),
    "eval-setting": (["+eval.foo=1"], "eval.EvalSettings has no setting foo"),
    "store-file": (["store=afile"], "store=afile: afile is a file, not a folder"),
    "store-below-file": (["store=afile/x/y"], "store=afile/x/y: afile is a file, not a folder"),
    "store-file-runs": (["job=runs", "store=afile"], "store=afile: this is a file"),
    "store-file-leaderboard": (["job=leaderboard", "store=afile"], "store=afile: this is a file"),
    "before-file": (["before=afile"], "before=afile: afile is a file, not a folder; name another folder"),
    "verify-file": (["verify", "l.csv", "url=http://x/v1", "folder=afile"], "job.folder=afile: afile is a file, not a"),
    "store-nowhere": (["store=/proc/none"], "store=/proc/none: a run's folder cannot be made there"),
    "resume-nothing": (["resume=no/such"], "resume=no/such: there is no run in this folder"),
    "resume-file": (["resume=afile"], "resume=afile: this is a file"),
    "resume-data": (["resume=somedata"], "resume=somedata: there is no run in this folder"),
    "resume-other-config": (["resume=other"], "resume=other: config.yaml there is cut off, or not that of a run"),
    "resume-cut": (["resume=cut"], "resume=cut: config.yaml there is cut off, or not that of a run (it lacks choices)"),
    "resume-broken": (["resume=broken"], "resume=broken: config.yaml there is damaged"),
    "leaderboard-file": (["job=leaderboard", "job.file=../../x"], "job.file=../../x: this is no plain name of a file"),
    "leaderboard-none": (["job=leaderboard"], "no finished run to compare (there is none): the leaderboard is not"),
    "model-unnamed": (["model=own"], "model=own names no model: give model.name="),
    "data-unnamed": (["data=zsre"], "data=zsre comes from a file of yours: give data.path="),
    "interpolation": (["seed=${nothing}"], "Interpolation key 'nothing' not found"),
    "environment": (["seed=${oc.env:NOPE}"], "NOPE"),
}
"""Arguments of ``run.py``, and what its one line on an error says."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with things that are no runs."""
    home = tmp_path_factory.mktemp("home")
    (home / "afile").write_text("x")
    (home / "my_bad.py").write_text("class Bad:\n    def edit(self, lm, facts):\n        return None\n")
    whole = "".join(f"{part}: 0\n" for part in PARTS)
    texts: dict[str, str | None] = {
        "somedata": None,
        "other": "a: 1\n",
        "cut": whole.replace("choices: 0\n", ""),
        "broken": "a: [1, 2\nb: }",
    }
    for name, text in texts.items():
        (home / name).mkdir()
        if text is not None:
            (home / name / "config.yaml").write_text(text)
    return home


def files(home: Path) -> set[Path]:
    """What lies in a folder, but for runs and for what Python keeps of the modules that it imports."""
    return {path for path in home.rglob("*") if not {"outputs", "__pycache__"}.intersection(path.parts)}


@pytest.mark.parametrize("case", LINES)
def test_the_command_line_answers_in_one_line(home: Path, case: str) -> None:
    arguments, expected = LINES[case]
    before = files(home)
    said = program.call(home, *arguments, succeeds=False)
    assert expected in said
    assert len(said.splitlines()) == 1, said
    assert files(home) == before
    assert not [path for path in home.rglob("run.log") if path.parent.name != ".jobs"]


def test_a_file_for_an_argument_is_answered_with_how_it_is_given(home: Path) -> None:
    said = program.call(home, "edit", "my facts.csv", succeeds=False)
    assert said == "my facts.csv: this is no setting; A file of facts is given as data=facts data.path='my facts.csv'\n"


def test_the_version_is_this_programs(home: Path) -> None:
    assert program.call(home, "--version").startswith("corrigenda")


def test_help_names_what_can_be_done_and_chosen_and_no_more(home: Path) -> None:
    said = program.call(home, "help")
    assert said == program.call(home, "--help")
    assert "job: ask, backward, build" in said
    first = said.split("== Configuration groups ==")[0]
    for command in (" [job] [group=choice ...] [key=value ...]", 'ask "A prompt" edit=FOLDER', "data.path=facts.csv"):
        assert command in first
    assert len(said.splitlines()) < 40


@pytest.mark.parametrize("argument", ["nonsense", "a=[", "=1", "seed=1,2"])
def test_what_cannot_be_read_is_wrong_usage(home: Path, argument: str) -> None:
    said = program.call(home, argument, succeeds=False)
    assert len(said.splitlines()) == 1
