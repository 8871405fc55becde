import argparse
import json
from pathlib import Path
from typing import Any

import circuits
import pytest
import tiny
import torch

from corrigenda import LanguageModel
from corrigenda.data import read_facts
from corrigenda.forward.recording import forward_logits
from locate import Circuits
from locate.circuits.faithfulness import SHARES

FORM = "the mother tongue of {}"
SUBJECTS = ("Eiffel", "red", "Big", "Paris", "seven", "green", "London", "Rome")


def says(lm: LanguageModel, subject: str) -> str:
    batch = lm.batch([lm.tokens(FORM.format(subject))])
    with torch.no_grad():
        return lm.text([int(forward_logits(lm, batch, batch.lengths - 1)[0].argmax())]).strip()


def test_circuits_of_the_facts_that_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build("llama", scale=8.0)
    objects = {subject: says(lm, subject) for subject in SUBJECTS}
    assert len({*objects.values()}) > 2
    wrong = {"target_true": "never", "id": "unknown", "subject": "blue"}
    of = [{"id": one, "subject": one, "target_true": said} for one, said in objects.items()]
    records = [{"prompt": FORM, "relation": "city", "target_new": "guitar"} | one for one in (wrong, *of)]
    (tmp_path / "facts.json").write_text(json.dumps(records))
    monkeypatch.setattr(circuits, "load", lambda name: lm)
    parser = argparse.ArgumentParser()
    parser.add_argument("--docs", type=Path, default=tmp_path / "docs")
    circuits.options(parser)
    given = ["--data", str(tmp_path / "facts.json"), "--facts", "3", "--work", str(tmp_path / "work")]
    first = circuits.collect(parser.parse_args(given))
    figures = first.figures["models"][lm.name]
    assert len(figures["subjects"]) == 3
    assert "blue" not in figures["subjects"]

    # As the locator by itself has them, and the statistics by hand.
    facts = read_facts(tmp_path / "facts.json")
    by_hand = [
        Circuits(method="eap", exact=0, controls=()).find(lm, fact, others=[*facts])
        for subject in figures["subjects"]
        for fact in facts
        if fact.subject == subject
    ]
    assert figures["values"]["eap"] == [pytest.approx(one.values[0].tolist(), abs=1e-5) for one in by_hand]
    found = circuits.digest(figures)
    assert found["n_facts"] == 3
    kept, none, everything = (
        sum(column) / 3 for column in zip(*([one.values[0][6], *one.ends] for one in by_hand), strict=True)
    )
    assert SHARES[6] == 0.1
    expected = pytest.approx(float((kept - none) / (everything - none)), abs=1e-4)
    assert found["faithfulness"]["eap"]["0.1"]["mean"] == expected
    off = {name: circuits.by_fact(figures, name)["after"]["off"] for name in circuits.METHODS}
    assert off["eap"] == pytest.approx([abs(1 - float(one.faithfulness[0][3])) for one in by_hand], abs=1e-4)
    expected = pytest.approx((sum(off["eap_ig"]) - sum(off["eap"])) / 3, abs=1e-4)
    assert found["apart"]["off"]["mean"] == expected
    assert found["nearer"] == sum(one < two for one, two in zip(off["eap_ig"], off["eap"], strict=True))

    def nothing(*_: object) -> Any:
        raise AssertionError("it was there")

    monkeypatch.setattr(circuits, "circuit_of", nothing)
    assert circuits.collect(parser.parse_args(given)) == first
    made = {"page": circuits.NAME, "made": [], "runs": {}, "figures": first.figures}
    [path] = circuits.REPORT.page(circuits.REPORT.digested(made), tmp_path)
    assert f"in {found['nearer']} of 3" in " ".join(path.read_text(encoding="utf-8").split())
