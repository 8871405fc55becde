from typing import Any

import pytest
from scripts import script

N = 12


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    return script("real_models", "docs/reports", monkeypatch)


def row(module: Any, kept: float, consistent: int = 4) -> dict[str, Any]:
    """A row in which all facts have these shares of answers kept, and some say themselves what was asked."""
    values: dict[str, list[float | None]] = {key: [1.0] * N for key in module.KEYS}
    values |= {"answer_kept": [kept] * N, "bleed": [0.0] * N, "perplexity_drift": [0.125] * N}
    values["native_consistency"] = [0.5] * consistent + [None] * (N - consistent)
    return {
        "subjects": [f"s{n}" for n in range(N)],
        "seconds": 1.0,
        "failed": 0,
        "before": {"native_consistency": values["native_consistency"], "bleed": [0.25] * N},
        "after": values,
    }


def test_what_is_told_apart(module: Any) -> None:
    rows = {
        "memit": row(module, 0.5),
        "contexts": row(module, 0.5),
        "longer": row(module, 0.75),
        "longer-8": row(module, 0.625),
        "shipped": row(module, 0.25),
        "bfloat16": row(module, 1.0),
    }
    figures = {"data": "facts.json", "first": 1, "models": {"smollm2-135m": rows}}
    digest = module.digest(figures)
    found = digest["shown"]["smollm2-135m"]
    assert (found["rows"]["memit"]["answer_kept"]["mean"], found["rows"]["memit"]["answer_kept"]["n"]) == (0.5, N)
    assert found["rows"]["memit"]["perplexity_drift"]["low"] is None  # of one model
    assert found["before"]["native_consistency"]["n"] == 4
    assert found["tests"]["shipped"]["base"] == "memit"
    tests = found["tests"]["shipped"]["of"]
    assert tests["answer_kept"]["mean"] == -0.25
    assert tests["answer_kept"]["p"] == pytest.approx(11 * 2 / 2**N)  # of 2^12 ways to swap two; by Holm of 11
    assert tests["efficacy_success"] == {"mean": 0.0, "p": 1.0}


def test_what_an_edit_in_bfloat16_decides_as_in_float32(module: Any) -> None:
    whole, half = (row(module, 0.5) | {"failed": 0} for _ in range(2))
    whole["decisions"] = {"prompt": [[True]] * N, "paraphrases": [[True]] * N, "neighbourhood": [[False, False]] * N}
    others = [[True, False], *[[False, False]] * (N - 1)]
    half |= {"decisions": {**whole["decisions"], "neighbourhood": others}, "peak_memory_mb": 5120.0}
    further = {name: row(module, 0.5) for name in ("bfloat16", "memit", "contexts", "shipped", "longer")}
    rows = {**further, "longer-8": whole, "half": half}
    figures = {"data": "f.json", "first": 1, "models": {"smollm2-135m": rows}}
    digest = module.digest(figures)
    found = digest["shown"]["smollm2-135m"]["agreement"]
    assert found["neighbourhood"] == {"same": 2 * N - 1, "n": 2 * N}
    assert found["all"] == {"same": 4 * N - 1, "n": 4 * N}
    del half["decisions"]
    assert module.digest(figures)["shown"]["smollm2-135m"]["agreement"] is None  # rows that were made before
