import sys
from pathlib import Path
from types import ModuleType

import pytest
import tiny
import torch
from scripts import script

from corrigenda import Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.forward.interventions import Read, intervene
from corrigenda.models.sites import Site
from corrigenda.moments.second_moment import SecondMoment
from corrigenda.moments.text import Text
from corrigenda.prompts import encode

FACT = Fact(
    "Big Ben",
    "{} is in the city of",
    "Rome",
    "London",
    paraphrases=["in the city with Big Ben"],
    neighbourhood=["the Eiffel tower is in the city of", "Thomas plays the guitar"],
)


FACTS = [
    FACT,
    Fact("Thomas", "{} plays the", "piano", "guitar", paraphrases=["Thomas is"], neighbourhood=["Big Ben is in Rome"]),
]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("keys", "docs/reports", monkeypatch)


def moments(lm: LanguageModel) -> dict[int, SecondMoment]:
    drawn = torch.randn(300, lm.memory(0).d_ffn, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return {layer: SecondMoment(drawn.T @ drawn / 300, 300, layer, Text()) for layer in (0, 2)}


def outputs(lm: LanguageModel, prompt: str, layer: int) -> torch.Tensor:
    ids = torch.tensor([encode(lm.tokenizer, prompt)])
    with torch.inference_mode(), intervene(lm, Site("ffn", layer), Read()) as seen:
        lm.model(input_ids=ids)
    return seen.value[0].double()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_share_is_what_an_update_does_elsewhere(report: ModuleType, family: str) -> None:
    lm = tiny.build(family)
    found = report.of_one(lm, FACT, moments(lm))
    for number, (layer, moment) in enumerate(moments(lm).items()):
        at = report.last_of(lm, FACT.statement, FACT.subject)
        key = report.coefficients(lm, FACT.statement, [layer])[layer][at]
        left, right = moment.solve(key[None])[0].float(), torch.ones(lm.memory(0).d_model)
        edit = LowRankEdit.of(
            lm, Origin(lm.name, lm.fingerprint, "by_hand", {}, (FACT,)), {layer: (left[:, None], right[None])}
        )
        prompts = [FACT.statement, *FACT.paraphrases, *FACT.neighbourhood]
        before = [outputs(lm, prompt, layer) for prompt in prompts]
        with edit.applied(lm):
            after = [outputs(lm, prompt, layer) for prompt in prompts]
        own, paraphrase, *neighbours = [(b - a).mean(1) for a, b in zip(before, after, strict=True)]
        place = report.last_of(lm, FACT.paraphrases[0], FACT.subject)
        assert found["paraphrases"][number] == pytest.approx(float(paraphrase[place] / own[at]), rel=1e-3)
        strongest = max(float((one[1:] / own[at]).max()) for one in neighbours)
        assert found["neighbours"][number] == pytest.approx(strongest, rel=1e-3)


def test_both_steps(lm: LanguageModel, report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "load", lambda name: lm)
    monkeypatch.setattr(report, "second_moments", lambda lm, layers: moments(lm))
    monkeypatch.setattr(report, "read_facts", lambda data, limit: FACTS)
    monkeypatch.setattr(sys, "argv", ["keys.py"])
    arguments = ["collect", "--layers", "0,2", "--work", str(tmp_path / "work"), "--docs", str(tmp_path)]
    report.REPORT.main(arguments)
    report.REPORT.main(["page", "--docs", str(tmp_path)])
    text = (tmp_path / "layers.md").read_text()
    assert "the first 2 of `embedded`" in text
    assert text.count("\n| 0") == text.count("\n| 2") == 1
    assert (tmp_path / "figures" / "layers.png").is_file()
