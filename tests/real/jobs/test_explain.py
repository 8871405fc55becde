from dataclasses import replace
from pathlib import Path

from corrigenda import LanguageModel
from corrigenda.data import read_facts
from editing import Rome
from jobs import ExplainSettings, explain


def test_the_eiffel_tower(smollm2: LanguageModel, tmp_path: Path) -> None:
    [fact] = read_facts("embedded", limit=1).facts
    fact = replace(fact, paraphrases=fact.paraphrases[:1], neighbourhood=fact.neighbourhood[:2], portability=())
    short = ExplainSettings(trace_sites=("block",), trace_samples=1, steps=3, answer_tokens=4)
    found = explain(smollm2, fact, Rome(), short)
    found.write(tmp_path / "fact.html")
    assert not smollm2.edits
    assert (tmp_path / "fact.html").stat().st_size > 100_000
    assert not any(one.absent for one in (*found.before.values(), *found.after.values(), found.written))

    answers = found.to_dict()["answers"]
    assert answers["prompt"][0]["before"]["answer"].strip().startswith("Paris")
    assert answers["prompt"][0]["after"]["right"] is True
    assert [len(answers[kind]) for kind in ("paraphrases", "neighbourhood", "locality")] == [1, 2, 3]
    [before], [after] = found.before["lens"].grids, found.after["lens"].grids
    assert before.values("top token")[0][-1] == " Paris"
    assert after.values("top token")[0][-1] == " Rome"
    # ROME writes at the subject's last token: with it, that token's states carry the new object in middle layers.
    block = found.after["trace"].grids[0]
    last = block.marked[-1]
    assert block.rows[last] == " Tower"
    assert block.values("indirect effect")[last][smollm2.n_layers // 2] > 0.5
    [logit], [logit_after] = found.before["attribution"].results, found.after["attribution"].results
    assert logit.logit < 0 < logit_after.logit
