import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import program
import pytest
from transformers.utils.import_utils import is_serve_available

from corrigenda import Fact, LanguageModel
from eval import EvalSettings, RealUse, evaluate
from eval.judge import Judge, JudgeError, judge_prompt

KEY = "sk-nobody-may-see-this-0123456789"
SECONDS = 300
FACTS = [
    Fact("The Eiffel Tower", "{} is located in the city of", "Rome", "Paris"),
    Fact("Hamlet", "Who is the author of {}?", "Leo Tolstoy", "William Shakespeare", aliases=("Tolstoy",)),
]

pytestmark = pytest.mark.skipif(not is_serve_available(), reason="needs transformers[serving]")


@pytest.fixture(scope="module")
def model(smollm2: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the default model, as transformers reads it."""
    folder = tmp_path_factory.mktemp("model")
    smollm2.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server, which is up and stops with the tests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    where = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", model, *where]
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=settings, stdout=file, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + SECONDS
        while not _healthy(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < end, log.read_text(errors="replace")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(address: str) -> bool:
    try:
        return httpx.get(address, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def test_a_judged_run(server: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    facts = tmp_path / "facts.jsonl"
    facts.write_text("\n".join(json.dumps(fact.to_dict()) for fact in FACTS[1:]), encoding="utf-8")
    judge = {"url": server, "model": model, "key": "A_KEY", "cache": tmp_path / "verdicts", "parallel": 2}
    short = {"max_new_tokens": 4, "fluency_tokens": 4, "perplexity_windows": 0, "real_use.max_new_tokens": 12}
    said = program.call(
        tmp_path,
        *("editor=in_context", "data=facts", f"data.path={facts}", "eval=real_use"),
        *(f"model.name={model}", "model.device=cpu"),
        *(f"eval.{name}={value}" for name, value in short.items()),
        *(f"eval.real_use.judge.{name}={value}" for name, value in judge.items()),
    )
    [path] = tmp_path.rglob("cases.jsonl")
    cases = [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]
    assert len(cases) == 1
    replies = {}
    for case in cases:
        right = Fact.from_dict(case["fact"]).answers
        for state in ("before", "after"):
            questions = case[state]["prompts"]["questions"]
            assert [one["setting"] for one in questions] == [
                *(f"{form}_{context}" for form in ("plain", "chat") for context in ("bare", "context", "told"))
            ]
            for one in questions:
                assert one["verdict"] in ("right", "wrong", "unread")
                if one["answer"].strip():
                    replies[judge_prompt(one["question"], right, one["answer"])] = one["reply"]
    kept = [json.loads(file.read_text(encoding="utf-8")) for file in (tmp_path / "verdicts").rglob("*.json")]
    assert {one["prompt"]: one["reply"] for one in kept} == replies
    summary = json.loads((path.parent / "summary.json").read_text(encoding="utf-8"))
    figures = summary["metrics"]
    assert figures["real_use_match"]["n"] == 1
    assert "judge_unread" in figures
    assert "in real use, by match" in said
    # The server says the same as the model in this process, and a second time.
    prompt = kept[0]["prompt"]
    again = Judge(url=server, model=model, cache=str(tmp_path / "again"))
    assert again.replies([prompt]) == Judge(local=model, cache=str(tmp_path / "local")).replies([prompt])
    assert again.replies([prompt]) == [kept[0]["reply"]]
    # The key is nowhere.
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.name == "config.yaml" and b"A_KEY" in file.read_bytes() for file in written)
    assert [file for file in written if KEY.encode() in file.read_bytes()] == []
    assert KEY not in said


def test_from_python(server: str, model: str, smollm2: LanguageModel, tmp_path: Path) -> None:
    judge = Judge(url=server, model=model, cache=str(tmp_path))
    asked = RealUse(forms=("chat",), contexts=("bare",), max_new_tokens=10, judge=judge)
    settings = EvalSettings(max_new_tokens=2, fluency_tokens=3, perplexity_windows=0, real_use=asked)
    [record] = evaluate(smollm2, FACTS[:1], settings).cases[0].after.questions()
    assert record.answer
    assert record.reply is not None
    assert record.verdict in ("right", "wrong", "unread")


def test_a_model_that_the_server_does_not_have(server: str, tmp_path: Path) -> None:
    with pytest.raises(
        JudgeError, match=f"the judge another at {server}: it answered 4.. .*see judge.url, judge.model"
    ):
        Judge(url=server, model="another", cache=str(tmp_path)).replies(["is it?"])
