from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import tuned
from pages import Collected

from corrigenda import Fact
from eval import Case, Measurement
from eval.evaluation import Evaluation


def evaluation(efficacy: list[float], drift: float) -> Evaluation:
    cases = []
    for number, value in enumerate(efficacy):
        values = {"efficacy_success": value, "preservation": 0.5, "perplexity_drift": drift}
        cases.append(Case(Fact(f"subject {number}", "{} is", "Rome"), None, Measurement(values=values)))
    return Evaluation(tuple(cases))


def trial(number: int, value: float, settings: dict[str, Any]) -> dict[str, Any]:
    params = {"layer": 3 + number}
    record = {"number": number, "params": params, "settings": settings, "value": value, "why": "drawn", "error": ""}
    return record | {"seconds": 2.0, "metrics": {}}


def finding(found: dict[str, Any], folder: Path) -> str:
    """What the page says of one editor, in its row of the table and first in its part."""
    lines = page({"smollm2-135m": {"rome": {"tuning": TUNING, "facts": FACTS, **found}}}, folder).splitlines()
    return "\n".join(line for line in lines if line.startswith(("**", "| `rome` |")))


def page(models: dict[str, Any], folder: Path) -> str:
    figures = {"models": models}
    data = {"command": "python docs/reports/tuned.py collect", "made": [], "runs": {}, "figures": figures}
    [path] = tuned.REPORT.page(tuned.REPORT.digested(data), folder)
    return path.read_text()


AXIS = {"name": "layer", "low": 0, "high": 9, "log": False, "whole": True}
TUNING = {
    **{"editor": "rome", "model": "tiny", "mode": "single", "facts": ["a", "b"], "seconds": 90.0, "objective": "ES"},
    **{"trials": [trial(0, 0.2, {}), trial(1, 0.5, {"layer": 4})], "best": 1, "axes": [AXIS]},
}
FACTS = {"tuned on": "facts 1 to 2 of x.json", "scored": "facts 3 to 4"}


def test_the_difference_is_tuned_minus_shipped(tmp_path: Path) -> None:
    shipped, better = evaluation([0.0] * 8 + [1.0] * 2, 0.05), evaluation([1.0] * 10, 0.01)
    found = tuned.compared({tuned.SHIPPED: shipped, tuned.TUNED: better})
    assert found["metrics"][tuned.SHIPPED]["efficacy_success"]["after"] == 0.2
    test = found["tests"][tuned.TUNED]["efficacy_success"]
    assert (test["n"], test["difference"], test["test"]) == (10, 0.8, "McNemar")
    assert test["p"] == 2 * 0.5**8
    assert found["tests"][tuned.TUNED]["preservation"]["difference"] == 0
    assert "perplexity_drift" not in found["tests"][tuned.TUNED]
    said = finding(found, tmp_path)
    assert "differ in efficacy success (ES) 80.0 [" in said
    assert "told apart in 1: `rome` on smollm2-135m; the layers that tracing finds in 0 of 0.**" in said
    turned = tuned.compared({tuned.SHIPPED: better, tuned.TUNED: shipped})
    assert "differ in efficacy success (ES) -80.0 [" in finding(turned, tmp_path)
    same = tuned.compared({tuned.SHIPPED: better, tuned.TUNED: better})
    said = "On 10 unseen facts tuned and shipped settings differ in nothing that is told apart**"
    assert said in finding(same, tmp_path)
    # Two facts of ten lost: no test finds that, and nothing says that they are not lost.
    few = tuned.compared({tuned.SHIPPED: better, tuned.TUNED: evaluation([1.0] * 8 + [0.0] * 2, 0.01)})
    assert "a loss of 5 points or more is not excluded: efficacy success (ES) -20.0 [" in finding(few, tmp_path)


def test_p_values_are_corrected_for_all_tests_of_an_editor(tmp_path: Path) -> None:
    shipped, better = evaluation([0.0] * 9 + [1.0], 0.05), evaluation([1.0] * 10, 0.01)
    ways = {tuned.SHIPPED: shipped, tuned.TUNED: better, tuned.TRACED: shipped}
    found = tuned.compared(ways)
    both, alone = ({"rome": one} for one in (found, {**found, "tests": {tuned.TUNED: found["tests"][tuned.TUNED]}}))
    p = [tuned.digest(one)["editors"]["rome"]["p"][tuned.TUNED]["efficacy_success"] for one in (both, alone)]
    # Two metrics have values of single facts: two tests a way.
    assert p == [4 * 2 * 0.5**9, 2 * 2 * 0.5**9]
    said = finding(found, tmp_path)
    assert "differ in efficacy success (ES) 90.0 [" in said
    assert "In the layers that tracing finds: nothing that is told apart." in said


def test_of_what_is_collected_again_no_earlier_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that found nothing this time is in no figure."""
    earlier: dict[str, Any] = {"smollm2-135m rome: layer=auto": [], "smollm2-135m memit: tuned": []}
    monkeypatch.setattr(tuned, "kept", lambda *_: Collected({"models": {}}, earlier, ("before",)))
    monkeypatch.setattr(tuned, "deadline_of", lambda _: None)
    monkeypatch.setattr(tuned, "newest_runs", lambda *_: None)
    monkeypatch.setattr(tuned, "of_editor", lambda *_: ({}, {}))
    found = tuned.collect(Namespace(models="smollm2-135m", editors="rome", settings_of=""))
    assert found is not None
    assert found.earlier == ("before",)
    assert [*found.runs] == ["smollm2-135m memit: tuned"]


def test_runs_of_other_settings_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a failed run's place is not taken by an older one of, say, fewer facts."""
    folders: list[Path] = []
    monkeypatch.setattr(tuned, "run", lambda _overrides, store, _deadline: folders.append(store.root) or True)
    sizes = {"first": 0, "unseen": 2, "trials": 2, "mode": "batch", "overrides": []}
    for count in (3, 4, 3):
        asked = Namespace(**sizes, count=count, store=tmp_path, file=Path("facts.json"))
        newest = tuned.newest_runs("smollm2-135m", "rome", asked, None)
        assert tuned.of_editor("smollm2-135m", "rome", asked, newest) is None
    assert folders[0] == folders[2] != folders[1]
