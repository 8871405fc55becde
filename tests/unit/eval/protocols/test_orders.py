from pathlib import Path
from typing import Any

import pytest
import tiny
from sequences import Nudge, facts_about, sequence

from corrigenda.runs.store import StoredRun
from eval.protocols.curves import curve_columns, curve_table
from eval.protocols.orders import by_order, order_interval, over_orders


def point(t: int, share: float, drift: float, **more: Any) -> dict[str, Any]:
    def figure(value: float) -> dict[str, Any]:
        return {"before": 0.2, "after": value, "low": 0.0, "high": 1.0, "n": 300}

    metrics = {"token_accuracy": figure(share), "perplexity_drift": figure(drift)}
    return {"t": t, "metrics": metrics, "n_failed": 1, "peak_memory_mb": 10.0 * t, **more}


def test_a_mean_and_students_interval_by_hand() -> None:
    """Values 0.4, 0.5, 0.6: standard deviation 0.1, t(0.975, 2) = 4.302653, half = 4.302653 * 0.1 / sqrt(3)."""
    curves = [[point(10, share, 1.0), point(30, 0.5, drift)] for share, drift in ((0.4, 1), (0.5, 2), (0.6, 3))]
    at_ten, at_thirty = over_orders(curves)
    found = at_ten["metrics"]["token_accuracy"]
    assert found["after"] == pytest.approx(0.5)
    assert (found["low"], found["high"]) == (pytest.approx(0.5 - 0.248414, abs=1e-6), pytest.approx(0.748414, abs=1e-6))
    assert (found["n"], at_ten["n_orders"], found["before"]) == (3, 3, pytest.approx(0.2))
    assert at_ten["metrics"]["perplexity_drift"]["low"] is None  # all agree: nothing is known of the spread
    assert at_thirty["metrics"]["perplexity_drift"]["low"] == pytest.approx(2 - 2.48414, abs=1e-5)
    assert (at_thirty["peak_memory_mb"], at_thirty["n_failed"]) == (300.0, 1.0)


def test_shares_stay_shares_and_one_order_has_no_interval() -> None:
    assert list(order_interval([0.9, 1.0], share=True) or ()) == pytest.approx([0.95 - 12.706205 * 0.05, 1.0], abs=1e-6)
    assert order_interval([0.9]) is None


def test_differences_are_no_shares_also_where_all_are_positive() -> None:
    def at(value: float) -> dict[str, Any]:
        figure = {"before": 0.0, "after": value, "low": 0.0, "high": 1.0, "n": 300}
        return {"t": 10, "metrics": {"efficacy_magnitude": figure, "efficacy_success": figure}}

    [found] = over_orders([[at(0.1)], [at(0.3)]])
    half = 12.706205 * 0.1  # t(0.975, 1) times the standard error of 0.1 and 0.3
    assert found["metrics"]["efficacy_magnitude"]["low"] == pytest.approx(0.2 - half, abs=1e-5)
    assert found["metrics"]["efficacy_magnitude"]["high"] == pytest.approx(0.2 + half, abs=1e-5)
    assert (found["metrics"]["efficacy_success"]["low"], found["metrics"]["efficacy_success"]["high"]) == (0.0, 1.0)


def test_only_what_all_orders_have_is_told() -> None:
    curves = [[point(10, 0.4, 1.0), point(30, 0.5, 1.0)], [point(10, 0.5, 2.0)]]
    del curves[1][0]["metrics"]["perplexity_drift"]
    [only] = over_orders(curves)
    assert (only["t"], list(only["metrics"])) == (10, ["token_accuracy"])
    with pytest.raises(ValueError, match="2 curves over orders have no T in common"):
        over_orders([[point(10, 0.4, 1.0)], [point(20, 0.4, 1.0)]])


def test_real_curves_of_three_orders(tmp_path: Path) -> None:
    lm = tiny.build("llama")
    some = facts_about(("Ben", "Rome"), ("red", "Rome"), ("blue", "Paris"), ("six", "Rome"), ("ten", "London"))
    runs, stored = [], []
    for order in (0, 1, 2):
        run = sequence(lm, some.shuffled(order), Nudge(), tmp_path / str(order), checkpoints=(2,), ends=2)
        summary = run.summary()
        assert summary["order"] == order
        runs.append(summary["curve"])
        config = {"mode": "sequential", "data": {"order": order}, "seed": 0, "job": {"name": "edit"}}
        identity = {"model_fingerprint": lm.fingerprint, "code": "c"}
        stored.append(StoredRun(run.run.folder.path, "finished", "", config, identity, summary))
    merged = over_orders(runs)
    assert [p["t"] for p in merged] == [2, 5]
    last = [curve[-1]["latest"]["token_accuracy"]["after"] for curve in runs]
    assert merged[-1]["latest"]["token_accuracy"]["after"] == pytest.approx(sum(last) / 3)
    assert curve_table(merged).row_count == 2
    assert {"first.token_accuracy", "latest.free_generation_strict"} <= set(curve_columns())
    [together] = by_order(stored)
    assert set(together) == {0, 1, 2}
    other = StoredRun(tmp_path, "finished", "", {**stored[0].config, "seed": 1}, stored[0].identity, stored[0].summary)
    stopped = StoredRun(tmp_path, "finished", "", stored[0].config, stored[0].identity, {**summary, "stopped": {}})
    assert [set(one) for one in by_order([*stored, other, stopped])] == [{0, 1, 2}, {0}]
