import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tiny
from made_entries import MadeUp, a_fact
from scripts import script

from corrigenda import Fact
from corrigenda.knowledge.attached import Attached
from corrigenda.knowledge.entries import Entry
from editing.knowledge.how import How


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("knowledge_base", "benchmarks", monkeypatch)


class Counted(MadeUp):
    """A solver that takes a while, and counts what it is asked for."""

    def __call__(self, lm: Any, facts: Sequence[Fact]) -> list[Entry]:
        ASKED.extend(fact.id for fact in facts)
        time.sleep(0.001)
        return super().__call__(lm, facts)

    def settings(self, _lm: Any) -> dict[str, int]:
        """Those that the entries name."""
        return {"steps": self.steps}


ASKED: list[str] = []


def test_a_list_is_solved_once(benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ASKED.clear()
    lm, solver = tiny.build("llama"), Counted((1,))
    monkeypatch.setattr(benchmark, "how_named", lambda name: How(name, solver, Attached()))  # type: ignore[arg-type]
    facts = [a_fact(number) for number in range(4)]
    kept = tmp_path / "list.kb"
    found = benchmark.rebuilt(lm, facts[:3], kept)
    assert found["facts"] == 3
    again = benchmark.rebuilt(lm, facts, kept)
    assert [fact.id for fact in facts] == ASKED
    assert again["solve_seconds"] > found["solve_seconds"] > 0  # what the first three took is still known
    whole = again["solve_seconds"] + again["compile_seconds"]
    assert again["rebuild_ratio"] == pytest.approx(whole / again["rebuild_seconds"])


def test_what_entries_behind_a_gate_cost(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("beside.PROMPT", "the Eiffel tower is in the city of")
    found = benchmark.scoped_overhead(tiny.build("llama"), 20, 4, 2)
    assert found["entries"] == 20
    assert found["overhead"] == pytest.approx(found["seconds"] / found["base_seconds"] - 1)
    for encoder in ("states", "wordllama"):
        looked_up = benchmark.lookup_seconds(tiny.build("llama"), 20, encoder, 2)
        assert all(looked_up[f"{name}_seconds"] > 0 for name in ("encode", "named", "silent", "all"))
