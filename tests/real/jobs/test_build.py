import json
import os
from pathlib import Path

import program
import pytest

from corrigenda.data import read_facts


@pytest.mark.slow
def test_two_real_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "environment", lambda _: dict(os.environ))  # the model and its moments are kept there
    facts = read_facts("embedded", limit=2).facts
    path = tmp_path / "corrections.jsonl"

    path.write_text("".join(json.dumps(fact.to_dict()) + "\n" for fact in facts), encoding="utf-8")
    arguments = ["job=build", "data=facts", f"data.path={path}", f"job.folder={tmp_path / 'built'}"]
    short = ["eval.perplexity_windows=3", "eval.fluency_tokens=3", "eval.max_new_tokens=8"]
    said = program.call(tmp_path, *arguments, *short, "job.accept.efficacy=0.8", "job.accept.perplexity_drift=0.1")
    assert "2 of 2 facts hold" in said
