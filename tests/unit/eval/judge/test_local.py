from pathlib import Path
from typing import Any

import pytest
import tiny

from corrigenda import LanguageModel, load
from eval import EvalSettings, RealUse
from eval.judge import Judge

TEMPLATE = "{% for m in messages %}the {{ m.content }} .{% endfor %}{% if add_generation_prompt %} is{% endif %}"


@pytest.fixture(scope="module", params=["", TEMPLATE], ids=["plain", "chat"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lm = tiny.build("llama")
    lm.tokenizer.chat_template = request.param or None
    folder = tmp_path_factory.mktemp("judge") / "model"
    lm.save_pretrained(folder)
    return folder


PROMPTS = ["red tower", "a city in the north of France", "Paris", "red tower"]


def test_it_answers_greedily_through_its_template(folder: Path, tmp_path: Path) -> None:
    judge = Judge(local=str(folder), max_tokens=5, cache=str(tmp_path))
    assert judge.named
    found = judge.replies(PROMPTS)
    lm = load(folder)
    read = [f"the {prompt} . is" if lm.tokenizer.chat_template else prompt for prompt in PROMPTS]
    special = not lm.tokenizer.chat_template
    for text, reply in zip(read, found, strict=True):
        expected = lm.model.generate(
            **lm.tokenizer(text, add_special_tokens=special, return_tensors="pt"), max_new_tokens=5, do_sample=False
        )[0]
        n_read = len(lm.tokenizer(text, add_special_tokens=special)["input_ids"])
        assert reply == lm.tokenizer.decode(expected[n_read:], skip_special_tokens=True)


def test_it_is_loaded_once_and_not_asked_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("eval.judge.local.load", lambda name: loaded.append(name) or load(name))
    judge = Judge(local=str(folder), max_tokens=3, cache=str(tmp_path))
    first = judge.replies(PROMPTS[:2])
    monkeypatch.setattr("eval.judge.local.decode", lambda *_: pytest.fail("it was asked again"))
    assert judge.replies(PROMPTS[:2]) == first
    assert loaded == [str(folder)]
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_another_model_under_the_same_name(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "model"
    tiny.build("llama", seed=1).save_pretrained(place)
    cache = str(tmp_path / "cache")
    Judge(local=str(place), max_tokens=3, cache=cache).replies(PROMPTS[:1])
    tiny.build("llama", seed=2).save_pretrained(place)
    Judge(local=str(place), max_tokens=3, cache=cache).replies(PROMPTS[:1])
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 2


def test_what_was_measured_before_an_edit_goes_by_who_judged_it(tmp_path: Path) -> None:
    """Not by the name of a folder, nor by how long an endpoint is waited for."""

    def measured(**judge: Any) -> dict[str, Any]:
        return EvalSettings(real_use=RealUse(judge=Judge(**judge))).before_an_edit

    found = []
    for seed in (1, 2, 2):
        tiny.build("llama", seed=seed).save_pretrained(tmp_path / "model")
        found.append(measured(local=str(tmp_path / "model")))
    assert found[0] != found[1] == found[2]
    endpoint = {"url": "http://localhost:1/v1", "model": "m"}
    assert measured(**endpoint) == measured(**endpoint, timeout=5, retries=1) != measured(**endpoint, seed=1)


def test_the_same_model_with_another_template(lm: LanguageModel, tmp_path: Path) -> None:
    place, cache = tmp_path / "model", str(tmp_path / "cache")
    for template in (TEMPLATE, TEMPLATE.replace("the ", "a ")):
        lm.tokenizer.chat_template = template
        lm.save_pretrained(place)
        Judge(local=str(place), max_tokens=3, cache=cache).replies(PROMPTS[:1])
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 2
