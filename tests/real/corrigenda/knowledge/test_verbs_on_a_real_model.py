import itertools
import random
from pathlib import Path

import pytest
import torch
from made_entries import MadeUp, verbs

from corrigenda import KnowledgeBase, LanguageModel, LowRankEdit
from corrigenda.knowledge.folding import Folding

LAYER = 3
SEQUENCES = 50


@pytest.mark.slow
def test_fifty_sequences_of_verbs_leave_no_trace(smollm2: LanguageModel, tmp_path: Path) -> None:
    solver, d_ffn = MadeUp((LAYER,)), smollm2.memory(LAYER).d_ffn
    variances = torch.rand(d_ffn, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.1
    how = Folding({LAYER: variances.diag()}, 1.0)

    def delta(kb: KnowledgeBase) -> bytes:
        edit = kb.compile(smollm2, how)
        if not edit.changed:
            return b""
        assert isinstance(edit, LowRankEdit)
        return edit.delta(LAYER).numpy().tobytes()

    untouched = smollm2.memory(LAYER).values.clone()
    found = set()
    with KnowledgeBase.open(tmp_path / "verbs.kb") as kb, KnowledgeBase.open(tmp_path / "new.kb") as new:
        for each in (kb, new):  # kills are not what is tested here
            each._database.connection.execute("PRAGMA synchronous=OFF")
        for seed in range(SEQUENCES):
            steps = list(itertools.islice(verbs(seed, 5), random.Random(seed).randrange(2, 9)))
            for verb, fact, _ in steps:
                if verb == "delete":
                    kb.delete(fact.id)
                else:
                    kb.update(fact, smollm2, solver) if verb == "update" else kb.insert([fact], smollm2, solver)
            left = steps[-1][2]
            new.insert(random.Random(seed).sample([*left.values()], len(left)), smollm2, solver)
            if seed % 7 == 0:
                kb.compact()
            expected = delta(new)
            assert delta(kb) == expected, f"sequence {seed}"
            found.add(expected)
            for each in (kb, new):
                for id in left:
                    each.delete(id)
    assert len(found) > SEQUENCES // 2
    assert torch.equal(smollm2.memory(LAYER).values, untouched)
