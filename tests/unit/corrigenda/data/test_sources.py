import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from malformed_parts import one_line, refused
from readers_parts import COUNTERFACT, KNOWN, PLAIN, RECORDS, Json, changed, plain_records, write, write_repository

from corrigenda.data import SCHEMAS, FactSet, read_facts, read_part, repository
from corrigenda.errors import RecordError
from corrigenda.facts import Fact


def test_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    lines = "\r\n".join(json.dumps(record) for record in plain_records(2))
    (tmp_path / "windows.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    (tmp_path / "windows.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(plain_records(2)).encode())
    assert len(read_facts(tmp_path / "windows.jsonl")) == len(read_facts(tmp_path / "windows.json")) == 2


@pytest.mark.parametrize("source", ["no-such.json", "data/no-such.json", "./a/b/c", Path("owner/name"), "nothing"])
def test_missing_file_says_what_to_do(source: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file or folder") as caught:
        read_facts(source)
    for words in (str(source), str(tmp_path), ".jsonl", "owner/name", "embedded"):
        assert words in str(caught.value)


def test_path_as_text_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.json").write_text(json.dumps([PLAIN]))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_facts(str(tmp_path / "mine.json")) == read_facts("~/mine.json")


def test_a_part_of_a_file_of_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    records = [{"subject": name, "prompt": "{} loves", "target_new": "Bob"} for name in ("Ann", "Eve", "Zoe", "")]
    Path("facts[1].json").write_text(json.dumps(records))
    for part, names in (("", "Ann Eve Zoe"), ("[1:]", "Eve Zoe"), ("[:1]", "Ann"), ("[1:2]", "Eve")):
        assert [fact.subject for fact in read_part(f"facts[1].json{part}")] == names.split(), part
    for part in ("[2:2]", "[3:1]"):
        refused(ValueError, re.escape(f"facts[1].json{part}: the part is empty"), read_part, f"facts[1].json{part}")
    refused(ValueError, "source must name a file", read_part, "[1:2]")


def test_folder_bad_record_is_named(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "cf", {"train": [KNOWN, changed(KNOWN, "attribute", "")]})
    with pytest.raises(RecordError) as caught:
        read_facts(folder)
    assert str(caught.value) == f"{folder}, record 2, field 'attribute': is empty ('')"


@pytest.mark.parametrize("name", ["", "x.json"])  # or called like a file
def test_folder_without_data(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(exist_ok=True)
    with pytest.raises(FileNotFoundError, match="found no data files in this folder") as caught:
        read_facts(tmp_path / name)
    assert str(tmp_path / name) in one_line(caught)


@pytest.mark.parametrize(("name", "text"), [("train.jsonl", '{"a": 1}\n{"a": 2,,}\n'), ("facts.json", "[{")])
def test_folder_with_malformed_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"split 'train', config None|JSON parse error") as caught:
        read_facts(tmp_path)
    assert str(tmp_path) in one_line(caught)


def test_what_exists_locally_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_repository(tmp_path / "owner" / "name", {"train": [PLAIN]})
    assert len(read_facts("owner/name")) == 1


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_without_a_cached_copy(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naps: list[float]
) -> None:
    config = pytest.importorskip("datasets").config
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # who runs the tests may have set it
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path)
    before = config.HF_HUB_OFFLINE
    with pytest.raises(ConnectionError) as caught:
        read_facts("owner/name")
    assert sum(naps) < 5
    assert before == config.HF_HUB_OFFLINE
    for words in ("'owner/name'", f"{variable}=1", "no copy", "local", ".jsonl", "read_facts('name.json')"):
        assert words in str(caught.value)


def cache_hub_copy(tmp_path: Path, hub_id: str, records: list[Json]) -> Path:
    """A cache folder of `datasets` as it is after the hub data set was loaded once."""
    import datasets

    name = hub_id.split("/")[-1]
    folder = write_repository(tmp_path / name, {"train": records})
    datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "made"))
    (made,) = (path.parent for path in (tmp_path / "made").rglob("*-train.arrow"))
    shutil.copytree(made, tmp_path / "cache" / hub_id.replace("/", "___") / "default" / "0.0.0" / "0123abcd")
    return tmp_path / "cache"


def test_offline_with_a_cached_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naps: list[float]) -> None:
    config = pytest.importorskip("datasets").config
    cache = cache_hub_copy(tmp_path, "owner/known", [KNOWN, changed(KNOWN, "known_id", 4)])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", cache)
    facts = read_facts("owner/known")
    assert sum(naps) < 5
    assert facts.name == "owner/known"
    assert facts[0] == SCHEMAS["known_facts"](KNOWN)
    assert len(facts) == 2


def test_no_network_falls_back_to_the_cached_copy(tmp_path: Path, no_hub: Path, naps: list[float]) -> None:
    assert cache_hub_copy(tmp_path, "owner/known", [KNOWN]) == no_hub
    assert len(read_facts("owner/known")) == 1
    refused(ConnectionError, r"127.0.0.1:9 does not answer", read_facts, "owner/other")
    assert sum(naps) < 8


def use_hub(monkeypatch: pytest.MonkeyPatch, load_dataset: Callable[..., object], status: int = 200) -> None:
    """Put a reachable hub in place whose data sets come from `load_dataset`."""
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    client = Mock(**{"head.return_value.status_code": status})
    monkeypatch.setattr(pytest.importorskip("huggingface_hub"), "get_session", lambda: client)
    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load_dataset)


def test_hub_is_streamed_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    records = iter([changed(COUNTERFACT, "case_id", number) for number in range(5)])
    load_dataset = Mock(return_value=records)
    use_hub(monkeypatch, load_dataset)
    facts = read_facts("owner/counterfact", split="test", config="en", limit=3)
    load_dataset.assert_called_once_with("owner/counterfact", "en", split="test", streaming=True)
    assert [fact.id for fact in facts] == ["0", "1", "2"]
    assert len([*records]) == 2


def test_hub_bad_record_names_the_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    zsre = RECORDS["zsre"]
    use_hub(monkeypatch, lambda *_, **__: [zsre, changed(zsre, "alt", "")])
    with pytest.raises(RecordError) as caught:
        read_facts("owner/zsre")
    assert str(caught.value) == "owner/zsre, record 2, field 'alt': is empty ('')"


def test_unknown_hub_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets.exceptions import DatasetNotFoundError

    missing = DatasetNotFoundError("Dataset 'owner/nmae' doesn't exist on the Hub or cannot be accessed.")
    use_hub(monkeypatch, Mock(side_effect=missing))
    with pytest.raises(FileNotFoundError, match="no data set 'owner/nmae' on the Hugging Face hub") as caught:
        read_facts("owner/nmae")
    assert "give its local path instead" in str(caught.value)
    assert "hf auth login" in str(caught.value)


def test_hub_lost_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> object:
        yield KNOWN
        raise ConnectionResetError("reset by peer")

    use_hub(monkeypatch, load_dataset)
    refused(ConnectionError, r"cannot read 'owner/known' .*reset by peer.*local path", read_facts, "owner/known")


def test_hub_out_of_order_is_not_asked_further(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> object:
        assert pytest.importorskip("datasets").config.HF_HUB_OFFLINE
        raise ConnectionError("offline")

    use_hub(monkeypatch, load_dataset, status=503)
    refused(ConnectionError, "out of order: status 503", read_facts, "owner/known")


def test_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    own = tuple(Fact.from_dict(record) for record in plain_records(5))
    monkeypatch.setattr("corrigenda.data.embedded.embedded_facts", lambda: own)
    assert read_facts("embedded") == FactSet("embedded", own)
    assert read_facts("embedded", offset=1, limit=2).facts == own[1:3]
    refused(ValueError, "embedded: offset 5 is past the end", read_facts, "embedded", offset=5)


def test_a_folder_that_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MOST_ENTRIES", 3)
    for number in range(4):
        (tmp_path / f"{number}.txt").touch()
    refused(ValueError, "has more than 3 files and folders in it; name the file", read_facts, tmp_path)


FILE = "hf://datasets/owner/name/folder/facts.json"


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corrigenda.data.repository.why_unreachable", lambda *switches: "")


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize(("source", "revision"), [(FILE, None), (FILE.replace("name", "name@v1.0"), "v1.0")])
def test_hub_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, revision: str | None) -> None:
    recent = RECORDS["wiki_recent"]
    download = Mock(return_value=str(write(tmp_path / "facts.json", recent, {**recent, "target_new": ""})))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    facts = read_facts(source, on_error="skip")
    assert list(facts) == [SCHEMAS["knowedit"](recent)]
    assert facts.name == "facts"
    assert str(facts.skipped[0]).startswith(f"{source}, record 2, field 'target_new'")
    asked = {"repo_type": "dataset", "revision": revision, "local_files_only": False}
    download.assert_called_once_with("owner/name", "folder/facts.json", **asked)


def test_hub_file_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConnectionError) as caught:
        read_facts(FILE)
    for words in (FILE, "HF_HUB_OFFLINE=1", "its cache has no copy", "local path", "read_facts('facts.json')"):
        assert words in str(caught.value)


@pytest.mark.usefixtures("reachable")
def test_hub_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from httpx import Request, Response
    from huggingface_hub.errors import RemoteEntryNotFoundError

    response = Response(404, request=Request("GET", "https://hub.invalid"))
    missing = RemoteEntryNotFoundError("404: no such file", response=response)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", Mock(side_effect=missing))
    refused(FileNotFoundError, r"no file 'hf://datasets/owner/name/folder/facts.json' on the Hugging", read_facts, FILE)


def test_hub_file_of_another_kind() -> None:
    with pytest.raises(
        ValueError, match=r"give a .json, .jsonl or .csv file of the data set, or only its id, 'owner/name'"
    ):
        read_facts("hf://datasets/owner/name/facts.parquet")
