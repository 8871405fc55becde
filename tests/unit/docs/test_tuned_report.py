from pathlib import Path
from typing import Any

import tuned

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
    """The page's first paragraph."""
    figures = {"tuning": TUNING, "facts": FACTS, "choice": "rome", **found}
    return page(figures, folder).splitlines()[2]


def page(figures: dict[str, Any], folder: Path) -> str:
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
    test = found["tests"]["efficacy_success"]
    assert (test["n"], test["difference"], test["test"]) == (10, 0.8, "McNemar")
    assert test["p"] == 2 * 0.5**8
    assert found["tests"]["preservation"]["difference"] == 0
    assert "perplexity_drift" not in found["tests"]
    assert "differ in efficacy success (ES) 80.0 [" in finding(found, tmp_path)
    turned = tuned.compared({tuned.SHIPPED: better, tuned.TUNED: shipped})
    assert "differ in efficacy success (ES) -80.0 [" in finding(turned, tmp_path)
    same = tuned.compared({tuned.SHIPPED: better, tuned.TUNED: better})
    said = "On 10 unseen facts tuned and shipped settings differ in nothing that is told apart**"
    assert said in finding(same, tmp_path)
    # Two facts of ten lost: no test finds that, and nothing says that they are not lost.
    few = tuned.compared({tuned.SHIPPED: better, tuned.TUNED: evaluation([1.0] * 8 + [0.0] * 2, 0.01)})
    assert "a loss of 5 points or more is not excluded: efficacy success (ES) -20.0 [" in finding(few, tmp_path)
