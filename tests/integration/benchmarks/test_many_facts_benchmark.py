import json
import sys
from pathlib import Path

import pytest
import tiny
from scripts import script


def test_it_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    tiny.build("llama", scale=8.0).save_pretrained(tmp_path / "model")
    prompts = {"Thomas": "{} is", "Big Ben": "in the city with {} the", "Danielle": "the mother tongue of {} is"}
    facts = [
        {"id": f"{subject} {place}", "subject": f"{place} {subject}", "prompt": prompt, "target_new": "Rome"}
        for place in ("north", "red")
        for subject, prompt in prompts.items()
    ]
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    asked = ["--model", str(tmp_path / "model"), "--facts", str(tmp_path / "facts.json"), "--count", "3"]
    monkeypatch.setattr(sys, "argv", ["many_facts.py", *asked, "--compared", "2", "--plain", "1", "--steps", "3"])
    many_facts = script("many_facts", "benchmarks", monkeypatch)
    many_facts.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["benchmark"], result["steps"], result["contexts"]) == ("many_facts", 3, 6)
    assert (result["facts"], result["compared_facts"], result["plain_facts"]) == (3, 2, 1)
    assert result["largest_difference"] < 0.02
    for key in ("ratio", "seconds_per_fact", "one_more_ratio", "ultraedit_facts_per_second"):
        assert result[key] > 0
    monkeypatch.setattr(sys, "argv", [*sys.argv[:3], "--facts", str(tmp_path / "few.json")])
    (tmp_path / "few.json").write_text(json.dumps(facts[:3]))
    with pytest.raises(SystemExit, match="has 3 facts: more than 3 are needed"):
        many_facts.main()
