import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corrigenda.errors import SettingsError
from eval.judge import Judge


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"url": "localhost:8000/v1", "model": "m"}, "must begin with http:// or https:// and name a host"),
        ({"url": "http://host/v1"}, "model=None must name the model"),
        ({"url": "http://host/v1", "model": ""}, "model='' must name the model"),
        ({"url": "http://host/v1", "model": "m", "local": "gpt2"}, "are two judges"),
        ({"model": "m"}, "model='m' is of an endpoint; give its url too"),
        ({"local": "gpt2", "model": "m"}, "model='m' is of an endpoint"),
        ({"url": "http://host/v1", "model": "m", "key": "NOT_THERE"}, "key='NOT_THERE': there is no such environment"),
    ],
)
def test_settings_that_cannot_be(values: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(SettingsError) as caught:
        Judge(**values)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"key": "sk-secret"},
        {"key": "hf_secret"},
        {"url": "https://me:secret@host/v1"},
        {"url": "me:secret@host?key=secret"},
    ],
)
def test_a_key_in_a_setting_is_refused_and_not_repeated(values: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="environment variable") as caught:
        Judge(**{"url": "http://host/v1", "model": "m"} | values)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["", "  ", "two words", "half\x00", "schlüssel"])
def test_a_key_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corrigenda.serving.os.environ", {"THE_KEY": value})
    with pytest.raises(SettingsError, match="key='THE_KEY'") as caught:
        Judge(url="http://host/v1", model="m", key="THE_KEY")
    assert not value.strip() or value not in str(caught.value)


def test_there_may_be_none() -> None:
    assert not Judge().named
    with pytest.raises(SettingsError, match="there is none to ask"):
        Judge().replies(["is it?"])


def test_the_cache(stub: Any, tmp_path: Path) -> None:
    judge = Judge(url=stub.url, model="m", cache=str(tmp_path))
    assert judge.replies(["is it?", "and this?"]) == ["right", "right"]
    assert Judge(url=stub.url, model="m", cache=str(tmp_path)).replies(["is it?"]) == ["right"]
    # How the requests are made changes nothing of what is asked.
    replace(judge, timeout=1.0, retries=0, parallel=1, wait=2.0).replies(["is it?"])
    assert len(stub.requests) == 2
    files = list(tmp_path.rglob("*"))
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in files if path.is_file()]
    assert {one["prompt"] for one in kept} == {"is it?", "and this?"}
    settings = {"url": stub.url, "model": "m", "temperature": 0.0, "seed": 0, "max_tokens": 16}
    assert kept[0] == {"judge": settings, "prompt": kept[0]["prompt"], "reply": "right"}
    for number, other in enumerate(({"model": "n"}, {"seed": 1}, {"temperature": 0.5}, {"max_tokens": 20})):
        replace(judge, **other).replies(["is it?"])
        assert len(stub.requests) == 3 + number


@pytest.mark.parametrize("content", ["", "{", "[]", '{"prompt": "another", "reply": "right"}', '{"prompt": "is it?"}'])
def test_a_damaged_file_of_the_cache(stub: Any, tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    judge = Judge(url=stub.url, model="m", cache=str(tmp_path))
    judge.replies(["is it?"])
    [path] = tmp_path.rglob("*.json")
    path.write_text(content, encoding="utf-8")
    assert judge.replies(["is it?"]) == ["right"]
    assert f"{path} is damaged; the judge is asked again" in caplog.text
    assert len(stub.requests) == 2
    assert judge.replies(["is it?"]) == ["right"]
    assert len(stub.requests) == 2


def test_the_users_cache_folder(stub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    Judge(url=stub.url, model="m").replies(["is it?"])
    assert len(list((tmp_path / "verdicts").rglob("*.json"))) == 1
