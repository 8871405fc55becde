import importlib
from pathlib import Path
from typing import Any

import pytest
from scripts import script

from corrigenda.system.files import write_json

NAMES = ("smollm2-135m counterfact 1-20", "smollm2-135m zsre 1-100")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    return script("yardsticks", "docs/reports", monkeypatch)


@pytest.fixture
def data(module: Any) -> dict[str, Any]:
    """Four facts of which the model says two itself, and one of these on its paraphrase; and facts without a floor."""
    kept = {key: [0.5, 1.0, 1.0, 1.0] for key in module.KEPT}
    one = {"subjects": list("abcd"), "says": [True, False, True, False], "floor": kept}
    one["unedited"] = {"native_consistency": [1.0, None, 0.0, None], "bleed": [0.0] * 4}
    none = {"subjects": ["a"], "says": [False], "floor": {}, "unedited": {}}
    figures = dict(zip(NAMES, (one, none), strict=True))
    return {"figures": figures, "digest": module.digest(figures), "command": "", "made": [], "runs": {}}


def test_the_page(module: Any, data: dict[str, Any], tmp_path: Path) -> None:
    write_json(tmp_path / "data" / "yardsticks.json", data)
    module.REPORT.main(["page", "--docs", str(tmp_path)])
    rows = [line for line in (tmp_path / "yardsticks.md").read_text().splitlines() if line.startswith("| smollm2")]
    assert rows[0].startswith("| smollm2-135m | counterfact | 1-20 | 4 | 2 | 50.0 ")
    assert rows[1].startswith("| smollm2-135m | zsre | 1-100 | 1 | 0 |  |  |  |")


def test_the_line_on_a_page(module: Any, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    words = importlib.import_module("words")
    monkeypatch.setattr(words, "read_data", lambda name: data)
    both = words.yardstick(NAMES[0])
    assert "the model says 2 of the 4 facts itself, and on the paraphrases of these the same in 50.0" in both
    assert "(n = 2)" in both
    assert "but in bfloat16, 87.5" in both
    assert "bfloat16" not in words.yardstick(NAMES[0], floor=False)
    assert "paraphrases" not in words.yardstick(NAMES[0], native=False)
    assert "says 0 of the 1 facts itself. (" in words.yardstick(NAMES[1])
    assert "were not measured on these facts" in words.yardstick("other facts")


def test_the_facts_that_a_sequence_scores() -> None:
    words = importlib.import_module("words")
    assert words.ends("1-300", 100) == "1-50,251-300"
    assert words.ends("332-400,441-671", 100) == "332-381,622-671"
    assert words.ends("1-100", 100) == "1-100"


def test_the_facts_of_a_set(module: Any, tmp_path: Path) -> None:
    record = {
        "subject": "Paris",
        "prompt": "{} lies in",
        "target_new": {"str": "Italy"},
        "target_true": {"str": "France"},
    }
    records = [
        {"case_id": n, "requested_rewrite": record | {"subject": f"P{n}"}, "neighborhood_prompts": ["a", "b"]}
        for n in range(4)
    ]
    write_json(tmp_path / "some.json", records)
    found = module.facts_of(module.Facts("m", "some", "2-3", neighbours=1), tmp_path)
    assert [(fact.subject, fact.neighbourhood) for fact in found] == [("P1", ("a",)), ("P2", ("a",))]
    (bare,) = module.facts_of(module.Facts("m", "some", "4-4", floor=False), tmp_path)
    assert bare.neighbourhood == ()
