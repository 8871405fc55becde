from pathlib import Path
from typing import Any

import pytest

from corrigenda.errors import SettingsError
from jobs.verify.settings import VerifySettings

URL = "http://localhost:8080/v1"


def settings(**given: Any) -> VerifySettings:
    return VerifySettings(**{"list": "a/list.jsonl", "url": URL} | given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": "localhost:8080"}, "job.url='localhost:8080' must begin with http:// or https://"),
        ({"before": "http://"}, "job.before='http://' must begin with"),
        ({"key": "NOT_THERE_AT_ALL"}, "job.key='NOT_THERE_AT_ALL': there is no such environment variable"),
        ({"model": "m", "before_model": "m"}, "job.before_model=m: this is the model that is verified"),
        ({"before_model": "old", "send": {"model": "m"}}, "job.before_model=old: this is the model that is verified"),
        ({"before": f"{URL}/"}, "job.before_model=None: this is the model that is verified; name another"),
        ({"before_key": "HOME"}, "job.before=None: before_model and before_key are of an address"),
        ({"before_model": "m", "before_key": "HOME"}, "job.before_key=HOME: the model before is at the same address"),
        ({"before": "smollm2-135m", "before_model": "m"}, "smollm2-135m: before_model and before_key are of"),
    ],
)
def test_what_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(**given)
    assert says in str(caught.value)


def test_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "mine")
    monkeypatch.setenv("THEIRS", "theirs")
    asked = settings(model="new", key="MINE", before_model="old", send={"seed": 1, "temperature": 0.5})
    new, old = asked.server(), asked.server(before=True)
    assert (new.address, new.key, new.name) == (f"{URL}/completions", "mine", "the server of new")
    assert new.sends == {"model": "new", "temperature": 0.5, "seed": 1}
    assert (old.address, old.key, old.sends["model"]) == (new.address, "mine", "old")
    elsewhere = settings(key="MINE", before="http://other/v1", via="chat").server(before=True)
    assert (elsewhere.address, elsewhere.key) == ("http://other/v1/chat/completions", None)
    assert elsewhere.settings["key"] == "before_key"
    assert settings(before="http://other/v1", before_key="THEIRS").server(before=True).key == "theirs"
    assert settings().server().sends == {"temperature": 0}


def test_lengths_and_places() -> None:
    assert [settings(via=via).longest for via in ("completions", "chat")] == [20, 50]
    assert settings(via="chat", max_tokens=7).longest == 7
    assert settings().place == Path("a/list-verified")
    assert settings(folder="~/here").place == Path.home() / "here"
