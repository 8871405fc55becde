import json
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import program
import pytest
import tiny
from run_parts import SUBJECTS, make_home, write

from corrigenda import Edit, KnowledgeBase, load
from corrigenda.runs.locks import locked
from jobs.build.folder import PARTS, READY, BuildFolder


def record(number: int, **fields: object) -> dict[str, object]:
    subject = f"the {SUBJECTS[number]}"
    return {
        "id": f"fact-{number}",
        "subject": subject,
        "prompt": "{} is in the city of",
        "target_true": "Paris",
        "target_new": ["Rome", "London"][number % 2],
        "paraphrases": [f"{subject} stands in"],
        "neighbourhood": ["the north is in the city of", "the south is in the city of"],
        "locality": [{"prompt": "the capital of France is", "answer": "Paris"}],
    } | fields


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = make_home(tmp_path_factory.mktemp("build"))
    tiny.build("llama", seed=1).save_pretrained(home / "other")
    return home


def build(home: Path, folder: Path, source: Path, *more: str, succeeds: bool = True, model: str = "model") -> str:
    arguments = [
        *("job=build", f"job.folder={folder}", "data=facts", f"data.path={source}"),
        *("model=own", f"model.name={home / model}", "model.device=cpu"),
        *("editor.prefixes=['','one two .']", "editor.value.steps=8", "editor.text.tokens=640"),
        *("editor.text.length=16", "editor.tokens_per_coefficient=0", "editor.refuse_norm=1e9", "editor.layers=[1]"),
        *("eval.max_new_tokens=3", "eval.preservation_tokens=3", "eval.perplexity_windows=3"),
        "eval.perplexity_window=8",
    ]
    return program.call(home, *arguments, *more, succeeds=succeeds)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def report_in(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report


def test_a_list_is_built_changed_and_built_again(home: Path, tmp_path: Path) -> None:
    folder, source = tmp_path / "built", tmp_path / "corrections.jsonl"
    said = build(home, folder, write(source, [record(number) for number in range(4)]))
    assert "+ 4 new   ~ 0 changed   - 0 removed   = 0 kept   (4 to solve)" in said
    assert "+ fact-0: the Danielle Darrieux is in the city of Rome" in said
    assert {path.name for path in folder.iterdir() if not path.name.startswith((".", "facts.kb"))} == {*PARTS}
    assert not [
        path for path in folder.iterdir() if path.name.startswith(".") and path.name not in (".lock", ".before")
    ]
    report = report_in(folder)
    assert (report["n_facts"], report["n_solved"], report["since"]["first"]) == (4, 4, True)
    assert report["n_holding"] == sum(row["holds"] for row in report["facts"])
    row = report["facts"][0]
    assert row["next_to_it"] == 3
    assert row["paraphrases"][0]["prompt"] == "the Danielle Darrieux stands in"

    # The model says what the report says, and the edit and the adapter make the same of the model that was given.
    lm, edited = load(str(home / "model"), device="cpu"), load(str(folder / "model"), device="cpu")
    answers = {row["statement"]: row for row in report["facts"]}
    for statement, row in answers.items():
        assert row["now"].startswith(edited.generate(statement, 3, stop_at_newline=True))
        assert row["before"].startswith(lm.generate(statement, 3, stop_at_newline=True))
    with Edit.load(folder / "edit").applied(lm):
        assert (lm.memory(1).values == edited.memory(1).values).all()
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    facts = gguf.GGUFReader(folder / "gguf" / "adapter.gguf").fields["corrigenda.facts"].contents()
    assert len(facts.splitlines()) == 4

    shorter = [record(0), record(2, target_new="Berlin"), record(3)]
    said = build(home, folder, write(source, shorter))
    assert "+ 0 new   ~ 1 changed   - 1 removed   = 2 kept   (1 to solve)" in said
    assert "~ fact-2: the Big Ben is in the city of Berlin (was: the Big Ben is in the city of Rome)" in said
    since = report_in(folder)["since"]
    assert (since["changed"], [one["id"] for one in since["removed"]]) == (["fact-2"], ["fact-1"])
    build(home, tmp_path / "fresh", write(source, shorter[::-1]))
    assert bytes_of(folder / "model") == bytes_of(tmp_path / "fresh" / "model")

    before = bytes_of(folder)
    said = build(home, folder, write(source, [*shorter, record(4)]), "job.dry=true")
    assert "+ 1 new   ~ 0 changed   - 0 removed   = 3 kept   (1 to solve)" in said
    unchanged = {name: content for name, content in bytes_of(folder).items() if "facts.kb" not in name}
    assert unchanged == {name: content for name, content in before.items() if "facts.kb" not in name}

    listed = program.call(home, "job=facts", f"job.folder={folder}")
    assert "3 of 3 facts" in listed
    assert "the Big Ben is in the city of" in listed
    assert "1 of 3 facts" in program.call(home, "job=facts", f"job.folder={folder}", "job.text=berlin")
    assert "nothing was found" in program.call(home, "job=facts", f"job.folder={folder}", "job.subject=nobody")
    said = program.call(home, "job=facts", f"job.folder={folder}", "job.id=gone", succeeds=False)
    assert "job.id=gone: no fact of" in said
    assert len(said.splitlines()) == 1


def test_rules_of_acceptance(home: Path, tmp_path: Path) -> None:
    """A broken rule ends the program with 1; the build is there, and its report says so."""
    folder, source = tmp_path / "built", write(tmp_path / "list.jsonl", [record(0, neighbourhood=[], locality=[])])
    said = build(home, folder, source, "job.accept.preservation=0.5", "job.accept.efficacy=0.0", succeeds=False)
    assert f"the build in {folder} is not accepted: preservation not measured" in said.splitlines()[-1]
    assert "it is in place all the same" in said.splitlines()[-1]
    report = report_in(folder)
    assert [rule["passed"] for rule in report["rules"]] == [True, False]
    assert report["accepted"] is False
    assert "not accepted" in (folder / "report.html").read_text(encoding="utf-8")
    with (  # the unedited model was asked by the first build
        mock.patch("eval.verification.unedited.measure", side_effect=AssertionError("asked again")),
        mock.patch("eval.verification.unedited.read_held_out", side_effect=AssertionError("asked again")),
    ):
        build(home, folder, source, "job.accept.efficacy=0.0", "job.accept.collisions=0")
    assert report_in(folder)["accepted"] is True
    assert report_in(folder)["metrics"] == report["metrics"]


def test_a_killed_build_goes_on(home: Path, tmp_path: Path) -> None:
    folder, source = tmp_path / "built", write(tmp_path / "list.jsonl", [record(0)])
    build(home, folder, source)
    earlier = bytes_of(folder / "model")
    write(source, [record(number) for number in range(6)])
    with mock.patch("jobs.build.job.verify", side_effect=KeyboardInterrupt):
        said = build(home, folder, source, succeeds=False)
    assert "what was solved and verified is kept; give the same command again" in said
    with mock.patch.object(BuildFolder, "replace", side_effect=KeyboardInterrupt):
        assert "(0 to solve)" in build(home, folder, source, succeeds=False)
    assert bytes_of(folder / "model") == earlier
    assert report_in(folder)["n_facts"] == 1
    with mock.patch("eval.verification.verify.measure", side_effect=AssertionError("verified already")):
        said = build(home, folder, source)
    assert "+ 5 new" in said  # against the build that is there
    assert report_in(folder)["n_facts"] == 6
    # What was verified of an edit says nothing of another one of the same facts, nor of what other code measures.
    with mock.patch.object(BuildFolder, "replace", side_effect=KeyboardInterrupt):
        build(home, folder, source, succeeds=False)
    with (
        mock.patch("eval.measure.code_version", return_value="another"),
        mock.patch("eval.verification.verify.measure", side_effect=KeyboardInterrupt) as measured,
    ):
        build(home, folder, source, succeeds=False)
    assert measured.called
    with mock.patch("eval.verification.verify.measure", side_effect=KeyboardInterrupt) as measured:
        build(home, folder, source, "editor.eps=0.5", succeeds=False)
    assert measured.called
    # Killed while the parts are moved: the next process moves the rest.
    now = bytes_of(folder / "model")
    (folder / READY).mkdir()
    (folder / READY / "whole.json").write_text(json.dumps([*PARTS]))
    (folder / "model").rename(folder / READY / "model")
    with BuildFolder(folder).held():
        assert bytes_of(folder / "model") == now
    assert not (folder / READY).exists()


def one_line(said: str, *expected: str) -> None:
    lines = [line for line in said.splitlines() if not line.startswith(("+", "~", "-", "Loading", "Solving"))]
    assert all(text in lines[-1] for text in expected), said
    assert "Traceback" not in said


def of_the_build(folder: Path) -> dict[str, bytes]:
    """The parts of the build; what was solved and verified on the way to a next one is beside them."""
    return {name: content for name, content in bytes_of(folder).items() if Path(name).parts[0] in PARTS}


def test_bad_input_leaves_the_earlier_build(home: Path, tmp_path: Path) -> None:
    folder, source = tmp_path / "built", write(tmp_path / "list.jsonl", [record(0), record(1)])
    build(home, folder, source)
    before = of_the_build(folder)

    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text(json.dumps(record(0)) + "\n{broken\n", encoding="utf-8")
    one_line(build(home, folder, damaged, succeeds=False), f"{damaged}, line 2: not valid JSON")
    twice = write(tmp_path / "twice.jsonl", [record(0), record(1, id="fact-0")])
    one_line(build(home, folder, twice, succeeds=False), f"{twice}, line 2, field 'id'", "repeats the id 'fact-0'")
    nothing = write(tmp_path / "nothing.jsonl", [])  # rather a mistake than the wish to withdraw all
    one_line(build(home, folder, nothing, succeeds=False), f"{nothing}: has no records")
    erased = write(tmp_path / "erased.jsonl", [record(0), record(1, target_new=None)])
    one_line(build(home, folder, erased, succeeds=False), "fact 'fact-1' asks to erase")
    one_line(build(home, folder, source, "data.on_error=skip", succeeds=False), "data.on_error=skip")
    one_line(build(home, folder, source, "job.how=nonsense", succeeds=False), "how=nonsense: there is no such way")
    one_line(build(home, folder, source, succeeds=False, model="other"), "the list there was built for", "weights")
    with locked(folder / ".lock"):
        one_line(build(home, folder, source, succeeds=False), "another process is building there")
    # Disks that are full, or cannot be written.
    write(source, [record(0), record(2)])
    full = OSError(28, "No space left on device")
    with mock.patch("corrigenda.language_model.LanguageModel.save_pretrained", side_effect=full):
        one_line(build(home, folder, source, succeeds=False), "cannot be written (No space left", "untouched")
    file = tmp_path / "afile"
    file.write_text("x")
    one_line(build(home, file, source, succeeds=False), f"job.folder={file}: this is a file")
    one_line(build(home, Path("/proc/built"), source, succeeds=False), "/proc/built")
    # What would take the place of something else, or be read and written.
    (tmp_path / "theirs" / "model").mkdir(parents=True)
    (tmp_path / "theirs" / "model" / "weights").write_text("x")
    one_line(build(home, tmp_path / "theirs", source, succeeds=False), "model there is not of a build", "own")
    assert (tmp_path / "theirs" / "model" / "weights").read_text() == "x"
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["model"]
    one_line(build(home, folder, folder / "facts.jsonl", succeeds=False), "is a part of the build", "beside the folder")
    # A report that is damaged, or of another version: said at once, and not after the verification.
    report = (folder / "report.json").read_bytes()
    for content, said in ((b"{", "damaged"), (b"{}", "has format None, and this version writes 1")):
        (folder / "report.json").write_bytes(content)
        with mock.patch("jobs.build.job.verify", side_effect=AssertionError("too late")):
            one_line(build(home, folder, source, succeeds=False), "report.json", said, "delete it to build")
    (folder / "report.json").write_bytes(report)
    assert before == of_the_build(folder)
    one_line(program.call(home, "job=facts", f"job.folder={tmp_path}", succeeds=False), "there is no list")
    with KnowledgeBase.open(folder / "facts.kb") as kb, pytest.raises(LookupError, match="no fact has the id 'gone'"):
        kb.delete("gone")


def test_facts_about_the_same_thing(home: Path, tmp_path: Path) -> None:
    again = record(0, id="again", target_new="Berlin")
    source = write(tmp_path / "list.jsonl", [record(0), record(1), again])
    build(home, tmp_path / "built", source, "editor=memit", "editor.site=ffn")
    report = report_in(tmp_path / "built")
    assert report["collisions"] == [{"fact": "fact-0", "what": "superseded by", "other": "again"}]
    assert [row["state"] for row in report["facts"]] == ["superseded", "in force", "in force"]
    assert report["how"] == "memit"


def test_no_setting_is_lost(home: Path, tmp_path: Path) -> None:
    """job.how=NAME takes the settings of editor=NAME; those of another editor are refused, and not passed over."""
    folder, source = tmp_path / "built", write(tmp_path / "list.jsonl", [record(0)])
    said = build(home, folder, source, "job.how=memit", succeeds=False)
    one_line(said, "job.how=memit: editor.prefixes on the command line", "give editor=memit with its own settings")
    one_line(build(home, folder, source, "job.how=memit", "editor=alphaedit", succeeds=False), "job.how=memit: editor")
    assert not folder.exists()
    build(home, folder, source, "job.how=emmet", "editor.eps=0.5")
    build(home, tmp_path / "named", source, "editor=emmet", "editor.eps=0.5")
    assert bytes_of(folder / "model") == bytes_of(tmp_path / "named" / "model")
    assert report_in(folder)["settings"]["eps"] == 0.5


def test_what_is_solved_again(home: Path, tmp_path: Path) -> None:
    """What an entry was solved for decides: not how a fact is asked about, but the way, and what its id stands for."""
    folder, source = tmp_path / "built", write(tmp_path / "list.jsonl", [record(0), record(1)])
    build(home, folder, source)
    first = bytes_of(folder / "model")
    other_prompts = record(0, paraphrases=["where the tower stands is"], neighbourhood=["the west is in the city of"])
    said = build(home, folder, write(source, [other_prompts, record(1)]))
    assert "~ 1 changed   - 0 removed   = 1 kept   (0 to solve)" in said
    assert "(other prompts, aliases or old object)" in said
    assert bytes_of(folder / "model") == first
    assert report_in(folder)["facts"][0]["paraphrases"][0]["prompt"] == "where the tower stands is"

    # An id that another fact takes; and one whose superseding fact is withdrawn, so that it is in force again.
    lists = [[record(2, id="fact-0"), record(1)], [record(0), record(1), record(0, id="last", target_new="Berlin")]]
    for records in lists:
        build(home, folder, write(source, records))
        assert bytes_of(folder / "model") != first
    build(home, folder, write(source, [record(0), record(1)]))
    assert bytes_of(folder / "model") == first

    # Another way keeps nothing that was solved for otherwise, and coming back gives the same bits.
    memit = ("editor=memit", "editor.layers=[0,1]")
    said = build(home, folder, source, *memit)
    assert "= 2 kept   (2 to solve: 2 of them kept, and not solved in this way yet)" in said
    build(home, tmp_path / "fresh", source, *memit)
    assert bytes_of(folder / "model") == bytes_of(tmp_path / "fresh" / "model") != first
    build(home, folder, source)
    assert bytes_of(folder / "model") == first


def test_beside_the_weights(home: Path, tmp_path: Path) -> None:
    """``how=attached``: the edit answers as the report says, and what was folded before is no part of the build."""
    folder, source = tmp_path / "built", write(tmp_path / "list.jsonl", [record(number) for number in range(3)])
    build(home, folder, source)
    assert (folder / "model").is_dir()
    said = build(home, folder, source, "job.how=attached", "job.accept.collisions=5", succeeds=False)
    assert "there is no model/: the edit is not in the weights; edit/ has it" in said
    assert "not accepted: collisions not measured" in said
    assert "(0 to solve)" in said  # EMMET's entries serve both ways
    assert not (folder / "model").exists()
    assert not (folder / "adapter").exists()
    assert not (folder / "gguf").exists()
    assert "there is no gguf/: llama.cpp has no such edit" in said
    report = report_in(folder)
    assert (report["how"], report["keys_compared"]) == ("attached", False)
    assert "Keys were not compared" in (folder / "report.html").read_text(encoding="utf-8")
    lm = load(str(home / "model"), device="cpu")
    with Edit.load(folder / "edit").applied(lm):
        for row in report["facts"]:
            assert row["now"].startswith(lm.generate(row["statement"], 3, stop_at_newline=True))
    assert any(row["now"] != row["before"] for row in report["facts"])
