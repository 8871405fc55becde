import json
from pathlib import Path
from typing import Any

import layers
import pages
import pytest
import tiny
from stand_ins import identity_moments

from corrigenda import Fact

SUBJECTS = ("Paris", "Rome", "Big Ben", "the Eiffel tower", "Danielle Darrieux", "England")


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Any) -> list[str]:
    """A tiny model, facts that it knows, and no pass over text; the command's arguments."""
    lm = tiny.build("llama")

    identity_moments(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(layers, "load", lambda name, dtype: lm)
    monkeypatch.setattr(layers, "RESAMPLES", 50)
    facts = [known(lm, subject, number) for number, subject in enumerate(SUBJECTS)]
    path = tmp_path / "facts.jsonl"
    path.write_text("".join(json.dumps(fact.to_dict()) + "\n" for fact in facts))
    return [
        *("collect", "--data", str(path), "--facts", "2", "--traced", "3", "--contexts", "1"),
        *("--work", str(tmp_path / "work"), "--docs", str(tmp_path / "docs")),
    ]


def test_a_page_of_a_tiny_model(tmp_path: Path, prepared: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        layers.REPORT.main([*prepared, "--minutes", "0"])
    assert stopped.value.code == 3
    assert not pages.data_path("localization", tmp_path / "docs").exists()
    layers.REPORT.main(prepared)  # a stopped command goes on where it was
    data = pages.read_data("localization", tmp_path / "docs")
    [(model, figures)] = data["figures"]["models"].items()
    n_layers = figures["n_layers"]
    assert len(figures["layers"]) == n_layers
    assert len(figures["traced"]["effects"]) == 3
    assert len(figures["traced"]["effects"][0]) == n_layers
    runs = {"traces", *(f"layer {layer}" for layer in range(n_layers))}
    assert set(data["runs"]) == {f"{model}: {run}" for run in runs}
    assert all(data["runs"].values())
    notes = len(json.dumps(data["runs"]))
    layers.REPORT.main(prepared)  # all is there: nothing is run, and nothing noted
    assert len(json.dumps(pages.read_data("localization", tmp_path / "docs")["runs"])) == notes
    layers.REPORT.main(["page", "--docs", str(tmp_path / "docs")])
    text = (tmp_path / "docs" / "localization.md").read_text()
    assert "Code version" in text  # one for all: traces and edits
    assert f"at every layer of {model}" in text


def test_a_second_model_stands_beside_the_first(
    tmp_path: Path, prepared: list[str], known: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers.REPORT.main(prepared)
    [(first, kept)] = pages.read_data("localization", tmp_path / "docs")["figures"]["models"].items()
    lm = tiny.build("gpt2")
    lm.name = "second"
    monkeypatch.setattr(layers, "load", lambda name, dtype: lm)
    facts = [known(lm, subject, number + 10) for number, subject in enumerate(SUBJECTS)]
    ending = Fact("Paris", "the city of {}", "Rome", "London", id="ends with its subject")
    path = tmp_path / "facts.jsonl"
    path.write_text("".join(json.dumps(fact.to_dict()) + "\n" for fact in [*facts[:2], ending, *facts[2:]]))
    layers.REPORT.main([*prepared, "--traced", "4"])
    data = pages.read_data("localization", tmp_path / "docs")
    assert data["figures"]["models"][first] == kept
    assert len(data["earlier"]) == 1
    found = data["figures"]["models"]["second"]
    assert len(found["layers"]) == found["n_layers"]
    assert (found["traced"]["of"], found["traced"]["unknown"]) == ("facts", 0)
    assert found["traced"]["subjects"] == list(SUBJECTS[:4])
    assert len([run for run in data["runs"] if run.startswith("second")]) == found["n_layers"] + 1
