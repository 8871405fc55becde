import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from run_parts import SMALL_EDITOR, SMALL_EVALUATION
from scripts import script

from corrigenda.runs.store import Store


def test_a_model_and_an_editor_beside_others(
    tmp_path: Path,
    few_facts: list[str],
    runs: list[list[str]],
    run_here: Callable[[list[str], Store, float | None], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Facts are tuned on, and others scored in all ways; what the data file has of others stays."""
    tuned = script("tuned", "docs/reports", monkeypatch)
    pages = sys.modules["pages"]

    def run(overrides: list[str], store: Store, deadline: float | None) -> bool:
        # The tiny model knows no fact, so that no layer is traced; a run that fails is passed over.
        with suppress(AssertionError) if "editor.layer=auto" in overrides else nullcontext():
            run_here(overrides, store, deadline)
        return True

    monkeypatch.setattr(tuned, "run", run)
    monkeypatch.setattr(tuned, "MODELS", ("smollm2-135m", "own"))
    place = [*few_facts[few_facts.index("--store") : few_facts.index("--store") + 4], "--models", "own"]
    own = [one for one in few_facts if one.startswith("model.")]
    small = ["editor.value.steps=2", *SMALL_EDITOR, *SMALL_EVALUATION]
    facts = ["--file", str(tmp_path / "counterfact.json"), *"--first 2 --count 3 --unseen 4 --trials 2".split()]
    earlier = pages.Collected({"models": {"smollm2-135m": {"memit": {"kept": 1, "tests": {}, "metrics": {}}}}}, {})
    pages.write_data("tuned", "python docs/reports/tuned.py collect", earlier, tmp_path / "docs")
    tuned.REPORT.main(["collect", *place, "--editors", "rome", *facts, *own, *small, "data.schema=auto"])
    data = pages.read_data("tuned", tmp_path / "docs")
    models = data["figures"]["models"]
    assert models["smollm2-135m"] == earlier.figures["models"]["smollm2-135m"]
    found = models["own"]["rome"]
    assert len(found["tuning"]["trials"]) == 2
    assert found["facts"]["scored"] == "facts 6 to 9"
    assert set(found["tests"]) == {tuned.TUNED}
    assert {case["n"] for case in found["tests"][tuned.TUNED].values()} == {4}
    assert "editor.layer=auto" in runs[-1]
    found["tuning"]["settings"] = {"value.steps": 3}
    pages.write_json(tmp_path / "docs" / "data" / "tuned.json", data)
    borrowed = ["--settings-of", "own", *facts, *own, *small[1:], "data.schema=auto"]
    tuned.REPORT.main(["collect", *place, "--editors", "rome", *borrowed])
    assert "editor.value.steps=3" in runs[-1]
    data = pages.read_data("tuned", tmp_path / "docs")
    assert data["figures"]["models"] == models
    [part] = tuned.shown({**data, "digest": {"models": {name: tuned.digest(of) for name, of in models.items()}}})[
        "borrowed"
    ]
    assert (part["of"], part["settings"], part["facts"]) == ("own", {"value.steps": 3}, "facts 6 to 9")
    assert {case["n"] for case in part["tests"][tuned.BORROWED].values()} == {4}
    assert [run for run in data["runs"] if run.startswith("own rome: ")][:2] == [
        "own rome: tuning",
        "own rome: as shipped",
    ]
