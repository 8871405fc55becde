import os
import random
from pathlib import Path

import pytest
import tiny
from made_entries import LAYERS, MadeUp, a_fact

from corrigenda import KnowledgeBase, LowRankEdit
from corrigenda.moments.text import Text
from editing import AlphaEdit, Memit
from editing.knowledge.how import how_of
from editing.locate_then_edit.closed_form import ClosedForm

NUMBER = int(os.environ.get("CORRIGENDA_TEST_LISTS", "20"))
"""So many lists for each editor; 500 take half a minute."""

SMALL = {"layers": LAYERS, "text": Text(tokens=640, length=16), "tokens_per_coefficient": 0, "refuse_norm": 1e9}


@pytest.mark.parametrize("editor", [Memit(**SMALL, alike=1.0), AlphaEdit(**SMALL, alike=1.0, energy=0.5)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_lists_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editor: ClosedForm) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    lm, how = tiny.build("llama"), how_of(editor).compiler

    def delta(kb: KnowledgeBase) -> dict[int, bytes]:
        edit = kb.compile(lm, how)
        assert isinstance(edit, LowRankEdit)
        return {layer: edit.delta(layer).numpy().tobytes() for layer in edit.changed}

    seen = set()
    with KnowledgeBase.open(tmp_path / "lists.kb") as kb, KnowledgeBase.open(tmp_path / "new.kb") as new:
        for each in (kb, new):  # kills are not what is tested here
            each._database.connection.execute("PRAGMA synchronous=OFF")
        for seed in range(NUMBER):
            draw = random.Random(seed)
            ids = draw.sample(range(8), draw.randrange(1, 9))
            facts = [a_fact(number, draw.choice(["Rome", "Oslo", "Bern"])) for number in ids]
            kb.replace(facts)
            kb.solve(lm, MadeUp())
            new.replace([])
            new.insert(draw.sample(facts, len(facts)), lm, MadeUp())
            assert delta(kb) == delta(new), f"list {seed}"
            seen.add(delta(kb)[LAYERS[0]])
    assert len(seen) > NUMBER // 2
