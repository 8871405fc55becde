import json
import math
from pathlib import Path
from typing import Any

import many_facts
import many_facts_page
import many_facts_tuning
import pytest
import words

from corrigenda import Fact
from corrigenda.runs.store import Store
from corrigenda.system.files import write_json


def told(tuning: dict[str, Any]) -> str:
    """The page of no runs."""
    shape = {"model": "tiny", "d_ffn": 48, "batch": 4, "scored": 3, "not_run": [], "data": {}, "tuning": tuning}
    return words.rendered("many_facts", {**shape, **many_facts_page.digest(shape), "provenance": ""})


def trial(score: float | None, drift: float | None) -> dict[str, Any]:
    figures = {"score": score, "perplexity_drift": drift}
    return {"settings": {"x": score}, "figures": {key: value for key, value in figures.items() if value is not None}}


def test_each_method_has_as_many_trials() -> None:
    assert {math.prod(map(len, grid.values())) for grid in many_facts_tuning.GRIDS.values()} == {6}
    left_out = set(many_facts.METHODS) - set(many_facts_tuning.GRIDS)
    methods = many_facts.METHODS.items()
    others = {name for name, method in methods if method.tuned_as in many_facts_tuning.GRIDS or method.afterwards}
    # Controls, what has another's settings, and what was looked at when the figures were known.
    assert left_out == {"none", "random"} | others


def test_the_best_leaves_the_model_alone() -> None:
    best = many_facts_tuning.best_of
    wrecked, good, better, lame = trial(0.99, 0.5), trial(0.8, 0.09), trial(0.9, 0.1), trial(None, 0.0)
    assert best([wrecked, good, better, lame]) == better
    assert best([wrecked, trial(1.0, 0.4), lame]) == trial(1.0, 0.4)  # none is sound: the least drift
    assert best([lame, trial(1.0, None)]) is None


def test_trials_are_runs_on_facts_of_their_own_and_are_not_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [Fact(f"subject {n}", "{} is", "Rome", "Paris", id=f"fact-{n}").to_dict() for n in range(12)]
    (tmp_path / "counterfact.json").write_text(json.dumps(records))
    runs: list[dict[str, str]] = []

    def run(overrides: list[str], store: Store, deadline: float | None) -> bool:
        asked = dict(one.split("=", 1) for one in overrides)
        assert store.root == Path(asked["store"])
        if deadline is not None and len(runs) == 2:
            return False
        runs.append(asked)
        return True

    def point_in(folder: Path) -> dict[str, Any] | None:
        gamma = folder.name
        if not any(one["store"] == str(folder) for one in runs):
            return None
        values = {"score": float(gamma), "perplexity_drift": 0.2 if gamma == "0.99" else 0.0}
        return {
            "t": 4,
            "n_scored": 3,
            "metrics": {key: {"before": None, "after": value} for key, value in values.items()},
        }

    monkeypatch.setattr(many_facts_tuning, "run", run)
    monkeypatch.setattr(many_facts_tuning, "point_in", point_in)
    store = tmp_path / "store"
    arguments = ["--methods", "crispedit", "--first", "6", "--count", "4", "--batch", "2"]
    arguments += ["--files", str(tmp_path), "--store", str(store)]
    with pytest.raises(SystemExit, match="not finished yet"):
        many_facts_tuning.main([*arguments, "--minutes", "1"])
    many_facts_tuning.main(arguments)
    assert [one["editor.gamma"] for one in runs] == ["0.5", "0.7", "0.8", "0.9", "0.95", "0.99"]
    assert {(one["editor"], one["data.limit"], one["job.sequential.scored"]) for one in runs} == {
        ("crispedit", "4", "4")
    }
    edited = [json.loads(line)["id"] for line in Path(runs[0]["data.path"]).read_text().splitlines()]
    assert edited[:4] == ["fact-6", "fact-7", "fact-8", "fact-9"]
    found = json.loads((store / many_facts.TUNING).read_text())
    assert found["facts"] == "facts 7 to 10 of counterfact.json"
    assert found["methods"]["crispedit"]["chosen"] == {"gamma": 0.95}
    page = told(found)
    # 0.99 has the highest score and drifts too far; what is chosen is not at the edge of its grid.
    assert "| CrispEdit | gamma 0.5, 0.7, 0.8, 0.9, 0.95, 0.99 | gamma=0.95 |  | 95.0 | 50.0 to 99.0 |" in page
    assert "edited in one batch, of which 3 are scored" in page.replace("\n", " ")
    assert many_facts.settings_chosen(store, "crispedit") == {"gamma": 0.95}
    assert many_facts.settings_chosen(store, "memit") == {}
    write_json(store / many_facts.TUNING, {"methods": {"memit": {"chosen": {"ratio": 3.0}}}})
    for name in ("memit", "memit_plain", "memit_anew"):
        assert many_facts.settings_chosen(store, name) == {"ratio": 3.0}
    found["methods"]["crispedit"]["chosen"] = {"gamma": 0.99}
    assert "| gamma=0.99 | gamma | 99.0 |" in told(found)
    with pytest.raises(SystemExit, match=r"has 12 facts, and none to tune on after the first 100"):
        many_facts_tuning.main([*arguments, "--first", "100"])
