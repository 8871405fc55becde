import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import program
import pytest
import server_stub
import tiny
import torch
from edits_parts import low_rank
from gguf_parts import write_gguf
from run_parts import write

from corrigenda import LanguageModel, load
from corrigenda.runs.locks import locked

KEY = "sk-nobody-may-see-this-0123456789"
SAYS = {"Eiffel": " Rome, of course", "Louvre": " Paris, France", "two": " four"}
"""What the model says, by the first of these words in a prompt."""


def fact(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"fact-{number}",
        "subject": f"Eiffel {number}",
        "prompt": "{} is in the city of",
        "target_new": "Rome",
        "target_true": "Paris",
        "paraphrases": [f"Where is Eiffel {number}? In"],
        "neighbourhood": [f"Louvre {number} is in the city of"],
        "locality": [{"prompt": "two and two are", "answer": "four"}],
    } | fields


@pytest.fixture
def stub(stub: server_stub.Stub) -> server_stub.Stub:
    stub.reply = lambda prompt: next(text for word, text in SAYS.items() if word in prompt)
    return stub


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path / "list.jsonl", [fact(number) for number in range(3)])
    return tmp_path


def verify(home: Path, stub: Any, *more: str, succeeds: bool = True) -> str:
    url = [] if any(each.startswith("url=") for each in more) else [f"url={stub.url}"]
    return program.call(home, "verify", "list.jsonl", *url, "retries=0", *more, succeeds=succeeds)


def report_in(home: Path, folder: str = "list-verified") -> dict[str, Any]:
    report: dict[str, Any] = json.loads((home / folder / "report.json").read_text(encoding="utf-8"))
    return report


def last_line(said: str) -> str:
    assert "Traceback" not in said, said
    return said.splitlines()[-1]


def test_a_list_that_holds(home: Path, stub: Any) -> None:
    said = verify(home, stub, "model=m")
    assert "3 of 3 facts hold" in said
    assert "accepted: efficacy 100.0, wanted at least 100.0 %" in said
    assert "accepted: bleed 0.0, wanted at most 0.0 %" in said
    assert last_line(said) == f"the report is {Path('list-verified/report.html')}"
    assert {path.name for path in (home / "list-verified").iterdir()} == {".lock", "report.json", "report.html"}
    # "two and two are" is asked once for all three facts
    bodies = {request["body"]["prompt"]: request["body"] for request in stub.requests}
    assert len(stub.requests) == len(bodies) == 3 * 3 + 1
    assert bodies["Eiffel 0 is in the city of"] == {
        **{"model": "m", "temperature": 0, "prompt": "Eiffel 0 is in the city of", "max_tokens": 20, "stop": ["\n"]}
    }
    assert bodies["two and two are"] == {"model": "m", "temperature": 0, "prompt": "two and two are", "max_tokens": 10}
    report = report_in(home)
    assert report["facts"][0]["now"] == " Rome, of course"
    assert report["facts"][0]["before"] is None
    assert (report["facts"][0]["holds"], report["facts"][0]["next_to_it"]) == (True, 2)
    page = (home / "list-verified" / "report.html").read_text(encoding="utf-8")
    assert "3 of 3 facts hold" in page
    assert "This is the first verification." in page
    assert "nothing is known of a model before" in page


def test_what_fell_short(home: Path, stub: Any) -> None:
    """Exit status 1; a rule says what; the next verification says what changed, and asks anew."""
    verify(home, stub)
    answers = stub.reply
    stub.reply = lambda prompt: " Paris" if "Eiffel 1 is" in prompt else answers(prompt)
    asked = len(stub.requests)
    said = verify(home, stub, succeeds=False)
    assert len(stub.requests) == 2 * asked
    assert f"list.jsonl at {stub.url} falls short: efficacy 66.7, wanted at least 100.0 %" in last_line(said)
    assert "1 of 3 facts fall short" in said
    assert "1 do not hold any more: fact-1" in said
    assert report_in(home)["accepted"] is False
    assert "The served model falls short." in (home / "list-verified" / "report.html").read_text(encoding="utf-8")
    assert "2 of 3 facts hold" in verify(home, stub, "accept.efficacy=0.5")
    said = verify(home, stub, "accept.efficacy=0.5", "accept.paraphrases=1.0")
    assert "accepted: paraphrases 100.0" in said
    stub.reply = lambda prompt: " Rome" if "Louvre 2" in prompt else answers(prompt)
    said = verify(home, stub, succeeds=False)
    assert "next to 1 of them the model says the new object" in said
    assert "falls short: bleed 16.7, wanted at most 0.0 %" in last_line(said)
    write(home / "list.jsonl", [fact(0, neighbourhood=[], locality=[]), fact(1, id="other", neighbourhood=[])])
    said = verify(home, stub)
    assert [one["rule"] for one in report_in(home)["rules"]] == ["efficacy", "bleed"]
    assert report_in(home)["since"]["new"] == ["other"]
    write(home / "list.jsonl", [fact(0, neighbourhood=[], locality=[])])
    assert "bleed" not in verify(home, stub)  # nothing was asked next to it
    assert "bleed not measured" in verify(home, stub, "accept.bleed=0.1", succeeds=False)


def test_before(home: Path, stub: Any) -> None:
    with server_stub.running() as other:
        other.reply = lambda prompt: " Lyon" if "Louvre 1" in prompt else " Paris, France"
        said = verify(
            home, stub, f"before={other.url}", "before_model=old", "folder=a", "accept.preservation=0.9", succeeds=False
        )
        assert "next to 3 of them the model does not go on word for word as before" in said
        assert "not accepted: preservation 33.3, wanted at least 90.0 %" in said
        assert {request["body"]["model"] for request in other.requests} == {"old"}
        row = report_in(home, "a")["facts"][1]
        assert row["before"] == " Paris, France"
        assert {one["prompt"]: one["before"] for one in row["changed_next_to_it"]} == {
            **{"Louvre 1 is in the city of": " Lyon", "two and two are": " Paris, France"}
        }
        program.call(home, "verify", "list.jsonl", f"url={other.url}", "folder=old", succeeds=False)
    # From here on the other server is gone; what it said is in the folder.
    said = verify(home, stub, "before=old", "folder=b")
    assert report_in(home, "b")["metrics"] == report_in(home, "a")["metrics"]
    assert report_in(home, "old")["about"] in report_in(home, "b")["before"]
    write(home / "list.jsonl", [*map(fact, range(3)), fact(3)])
    said = verify(home, stub, "before=old", "folder=b")
    assert "3 of 13 questions were not asked in old, and are compared with nothing (the first: Eiffel 3 is" in said
    requests = len(stub.requests)
    verify(home, stub, "model=new", "before_model=old", "folder=c")
    assert [request["body"]["model"] for request in stub.requests[requests:]] == ["old"] * 13 + ["new"] * 13
    assert report_in(home, "c")["metrics"]["preservation"]["after"] == 1.0


def test_a_model_of_load_before(lm: LanguageModel, home: Path, stub: Any) -> None:
    lm.save_pretrained(home / "model")
    said = verify(home, stub, "before=model", "kept_tokens=3", "max_tokens=4", "accept.bleed=1.0")
    assert "next to 3 of them the model does not go on word for word as before" in said
    row = report_in(home)["facts"][0]
    assert row["before"] == lm.generate("Eiffel 0 is in the city of", 7, stop_at_newline=True)  # "Rome" has 4 bytes
    kept = {one["prompt"]: one["before"] for one in row["changed_next_to_it"]}
    assert kept["two and two are"] == lm.generate("two and two are", 3)


def test_in_a_chat(home: Path, stub: Any) -> None:
    stub.reply = lambda prompt: "The answer is: Rome." if "Eiffel" in prompt else "It is Paris, or four."
    said = verify(home, stub, "via=chat", "send={chat_template_kwargs:{enable_thinking:false}}")
    assert "3 of 3 facts hold" in said
    [body] = [each["body"] for each in stub.requests if "Eiffel 0 is" in each["body"]["messages"][0]["content"]]
    assert {request["path"] for request in stub.requests} == {"/v1/chat/completions"}
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["messages"][0]["content"].startswith('Complete this sentence: "Eiffel 0 is')
    assert body["max_tokens"] == 50
    assert "has the new object in it" in (home / "list-verified" / "report.html").read_text(encoding="utf-8")
    said = verify(home, stub, "before=list-verified", "folder=b", succeeds=False)
    assert "job.before=list-verified: it was asked by chat; give via=chat, too" in last_line(said)


def test_a_command_that_was_cut_short(home: Path, stub: Any) -> None:
    replies, fifth, killed = stub.reply, threading.Event(), threading.Event()

    def reply(prompt: str) -> str:
        if len(stub.requests) == 5:  # answers to it when nobody waits any more
            fifth.set()
            killed.wait(120)
        return replies(prompt)

    stub.reply = reply
    command = [sys.executable, str(program.RUN), "verify", "list.jsonl", f"url={stub.url}", "parallel=1"]
    environment = program.environment(home / "cache")
    process = subprocess.Popen(command, cwd=home, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    fifth.wait(120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed.set()
    [path] = home.rglob("answers.jsonl")
    there = path.read_bytes().count(b"\n")
    assert there == 4
    with path.open("ab") as file:
        file.write(b'{"question": {"pro')  # the last line is half written
    done = [request["body"]["prompt"] for request in stub.requests][:there]
    stub.requests, stub.reply = [], replies
    said = verify(home, stub)
    assert f"{there} of 10 answers are of an earlier command that was cut short" in said
    assert sorted([*done, *(request["body"]["prompt"] for request in stub.requests)]) == sorted(
        {*done, *(request["body"]["prompt"] for request in stub.requests)}
    )
    assert len(stub.requests) == 10 - there
    assert not [*home.rglob("answers.jsonl")]
    assert report_in(home)["n_holding"] == 3


def test_a_server_that_goes_away_and_comes_back(home: Path, stub: Any) -> None:
    stub.refuses = lambda prompt: "Louvre 2" in prompt
    replies, stub.reply = stub.reply, None
    stub.answers = [(200, server_stub.completion(" Rome"))]
    said = verify(home, stub, "parallel=1", succeeds=False)
    assert f"the server at {stub.url}: it answered 503 " in last_line(said)
    assert "give the same command again: what was answered is kept" in last_line(said)
    assert not (home / "list-verified" / "report.json").exists()
    stub.refuses, stub.reply, before = (lambda prompt: False), replies, len(stub.requests)
    said = verify(home, stub, "accept.bleed=1.0")
    assert "of 10 answers are of an earlier command" in said
    assert 0 < len(stub.requests) - before < 5
    stub.refuses, stub.reply = (lambda prompt: "Louvre 2" in prompt), None
    verify(home, stub, "parallel=1", succeeds=False)
    stub.refuses, stub.reply, before = (lambda prompt: False), replies, len(stub.requests)
    assert "answers are of an earlier command" not in verify(home, stub, "force=true")
    assert len(stub.requests) - before == 10


def test_no_key_is_written_down(home: Path, stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    stub.answers = [(401, f"bad key {KEY}")]
    replies, stub.reply = stub.reply, None
    said = verify(home, stub, "key=A_KEY", succeeds=False)
    assert "it answered 401 'bad key (the key)': its key was refused" in last_line(said)
    stub.answers, stub.reply = [(200, "")], lambda prompt: f"{replies(prompt)} {KEY}"
    with server_stub.running() as other:
        other.reply = replies
        said += verify(home, stub, "key=A_KEY", f"before={other.url}", "folder=a")
        assert {request["key"] for request in other.requests} == {None}  # it is not the other server's
        other.reply = stub.reply
        said += verify(home, stub, "key=A_KEY", f"before={other.url}", "before_key=A_KEY", "folder=b")
        assert other.requests[-1]["key"] == f"Bearer {KEY}"
    said += verify(home, stub, "key=A_KEY", "before_model=old", "folder=c")
    assert {request["key"] for request in stub.requests} == {f"Bearer {KEY}"}
    said += verify(home, stub, f"key={KEY}", succeeds=False)
    assert "job.key= must be the name of an environment variable" in last_line(said)
    assert [file for file in home.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()] == []
    assert KEY not in said
    assert "HTTP Request" not in said


def free_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


def test_what_cannot_be_is_said_before_anything_is_asked(home: Path, stub: Any) -> None:
    (home / "built").mkdir()
    (home / "built" / "report.json").write_text('{"format": 1, "facts": []}')
    for argument, says in {
        "url=http://me:secret@host/v1": "job.url= must be an address alone",
        "job.accept.collisions=1": "job.accept.collisions: a server does not tell this; leave it out",
        "accept.preservation=1.0": "job.accept.preservation: nothing is known of the model before",
        "before=nowhere/to-be-found": "nowhere/to-be-found",
        "folder=built": "job.folder=built: the report.json there is of a build or of another version",
        "before=built": "job.before=built: the report.json there is of a build or of another version",
        "folder=list.jsonl": "list.jsonl",
        "data.path=other.jsonl": "data.path=other.jsonl: what is verified is job.list=list.jsonl; leave it out",
        "data.on_error=skip": "data.on_error=skip: a list is verified whole",
    }.items():
        said = verify(home, stub, argument, succeeds=False)
        assert says in last_line(said)
        assert "secret" not in said
    assert stub.requests == []
    assert (home / "list.jsonl").read_text().count("\n") == 3


def test_lists_that_cannot_be(home: Path, stub: Any) -> None:
    def refused(*records: dict[str, Any]) -> str:
        write(home / "list.jsonl", records)
        return last_line(verify(home, stub, succeeds=False))

    assert "list.jsonl, line 2, field 'id'" in refused(fact(0), fact(1, id="fact-0"))
    assert "fact 'fact-1' asks to erase" in refused(fact(0), fact(1, target_new=None))
    assert "has no records" in refused()
    assert stub.requests == []
    with locked(home / "list-verified" / ".lock"):
        write(home / "list.jsonl", [fact(0)])
        assert "another process verifies there" in last_line(verify(home, stub, succeeds=False))
    write(home / "list.jsonl", [fact(0), fact(0, id="again", target_new="Oslo")])
    verify(home, stub, succeeds=False)
    assert [row["state"] for row in report_in(home)["facts"]] == ["superseded", "in force"]


@contextlib.contextmanager
def llama_server(model: Path, *adapters: Path) -> Iterator[str]:
    """llama.cpp's own server, in a process of its own."""
    code = """
import sys, time, xllamacpp
settings = xllamacpp.CommonParams()
settings.model.path, settings.port, settings.n_ctx, settings.n_parallel = sys.argv[1], int(sys.argv[2]), 512, 2
for path in sys.argv[3:]:
    lora = xllamacpp.CommonAdapterLoraInfo()
    lora.path, lora.scale = path, 1.0
    settings.lora_adapters = [lora]
server = xllamacpp.Server(settings)
print("up", flush=True)
time.sleep(600)
"""
    url = free_url()
    command = [sys.executable, "-c", code, str(model), str(urlsplit(url).port), *map(str, adapters)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield url
    finally:
        process.kill()
        process.wait()


def lead(lm: LanguageModel, prompt: str) -> float:
    """By how much the likeliest token is ahead of the second, in nats, at the nearest of the 8 tokens that follow."""
    tokens, leads = lm.tokens(prompt), []
    for _ in range(8):
        with torch.no_grad():
            two = lm.model(input_ids=torch.tensor([tokens])).logits[0, -1].topk(2)
        tokens = [*tokens, int(two.indices[0])]
        leads.append(float(two.values[0] - two.values[1]))
    return min(leads)


def test_llama_cpp(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="needs llama.cpp: the package xllamacpp")
    model = write_gguf(tmp_path / "tiny.gguf", tiny.build("llama"), word="\u0120w")
    lm = load(model, device="cpu")
    edit = low_rank(lm, 0, {1: 2, 2: 2})
    edit.to_gguf_adapter(tmp_path / "adapter")
    prompts, near = ["t t t t h", "th t th", "h h h th h"], "h h h h"
    plain = [lm.generate(prompt, 8) for prompt in (*prompts, near)]
    leads = [lead(lm, prompt) for prompt in (*prompts, near)]
    with edit.applied(lm):
        edited = [lm.generate(prompt, 8) for prompt in (*prompts, near)]
        leads += [lead(lm, prompt) for prompt in (*prompts, near)]
    assert min(leads) > 0.03  # llama.cpp keeps keys and values in float16: it is off by thousandths
    targets = [text.split()[0] for text in edited[:3]]
    assert all(text.split()[0] != target for text, target in zip(plain, targets, strict=False))
    facts = [
        {"id": prompt, "subject": prompt, "prompt": "{}", "target_new": target, "neighbourhood": [near]}
        for prompt, target in zip(prompts, targets, strict=True)
    ]
    write(tmp_path / "list.jsonl", facts)
    arguments = ("verify", "list.jsonl", "max_tokens=8", "kept_tokens=8", "accept.bleed=1.0")
    with llama_server(model) as url:
        said = program.call(tmp_path, *arguments, f"url={url}", "folder=plain", succeeds=False)
        assert "0 of 3 facts hold" in said
        said = program.call(tmp_path, *arguments, f"url={url}", "via=chat", "folder=chat", succeeds=False)
        assert "facts hold" in said
        write(tmp_path / "long.jsonl", [{"subject": "t h " * 300, "prompt": "{}t", "target_new": "w9"}])
        said = program.call(tmp_path, "verify", "long.jsonl", f"url={url}", succeeds=False)
        assert "it answered 400 " in last_line(said)
        assert "exceeds the available context size" in last_line(said)
    with llama_server(model, tmp_path / "adapter" / "adapter.gguf") as url:
        said = program.call(tmp_path, *arguments, f"url={url}", "before=plain")
        assert "3 of 3 facts hold" in said
    for folder, expected in (("plain", plain), ("list-verified", edited)):
        answers = {one["question"]["prompt"]: one["answer"] for one in report_in(tmp_path, folder)["answers"]}
        assert [answers[prompt] for prompt in (*prompts, near)] == expected
    changed = plain[3] != edited[3]
    assert report_in(tmp_path)["metrics"]["preservation"]["after"] == (0.0 if changed else 1.0)
