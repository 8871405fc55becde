import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from malformed_parts import refused
from torch import Tensor

from corrigenda import Fact
from corrigenda.runs.folder import RunFolder
from locate import CausalTrace, Neurons, UnknownFactError, average, suggest_layers
from locate.neurons.counts import NeuronCounts
from locate.neurons.knowledge_neurons import KnowledgeNeuronsResult
from locate.neurons.refine import NeuronsResult, refine
from locate.question import Question
from locate.survey import survey

FACTS = [Fact(name, "{} is", "x", id=name) for name in ("a", "b", "c", "d", "e")]


@dataclass
class Found:
    value: str

    def summary(self) -> dict:
        return {"value": self.value}

    def plot(self, path: str | Path) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("picture")

    def save(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True)
        (Path(folder) / "value.txt").write_text(self.value)


def load(folder: Path) -> Found:
    return Found((folder / "value.txt").read_text())


@dataclass
class Fake:
    """Finds a fact's name; does not know "b", fails at "d", and stops the run when asked too often."""

    mark: str = ""
    patience: int = 99
    asked: list[str] = field(default_factory=list)
    fails: set[str] = field(default_factory=set)
    crashes: set[str] = field(default_factory=set)

    def check(self, lm: object) -> None:
        if self.mark == "unfit":
            raise ValueError("a window too large")

    def find(self, lm: object, fact: Fact, answer: str | None = None) -> Found:
        self.asked.append(fact.id)
        if len(self.asked) > self.patience:
            raise KeyboardInterrupt
        if fact.id == "b":
            raise UnknownFactError("never heard of b")
        if fact.id == "d" or fact.id in self.fails:
            raise ValueError("d is cut")
        if fact.id in self.crashes:
            raise RuntimeError("out of memory")
        return Found(f"{fact.id}{self.mark}{answer or ''}")


def test_unknown_and_bad_facts_are_counted_and_passed_over(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    found = survey(None, FACTS, {"one": Fake("1"), "two": Fake("2")}, load, folder, answer="!")
    assert {name: [r.value for r in results] for name, results in found.results.items()} == {
        "one": ["a1!", "c1!", "e1!"],
        "two": ["a2!", "c2!", "e2!"],
    }
    assert found.unknown == {"b": "never heard of b"}
    assert list(found.failed) == ["d"]
    assert "d is cut" in found.failed["d"]
    assert found.summary()["n_located"] == 3
    assert found.summary()["n_unknown"] == 1
    assert len(list((tmp_path / "pictures").iterdir())) == 6
    lines = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in lines].count("located") == 6


def test_a_crash_is_no_verdict_on_a_fact(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    crashed = survey(None, FACTS, {"one": Fake("1", crashes={"c"})}, load, folder)
    assert set(crashed.failed) == {"c", "d"}
    again = Fake("1")
    found = survey(None, FACTS, {"one": again}, load, folder)
    assert again.asked == ["c"]
    assert list(found.failed) == ["d"]
    assert [each.value for each in found.results["one"]] == ["a1", "c1", "e1"]


def test_as_many_as_asked_for(tmp_path: Path) -> None:
    fake = Fake()
    found = survey(None, FACTS, {"one": fake}, load, RunFolder(tmp_path), limit=2)
    assert [r.value for r in found.results["one"]] == ["a", "c"]  # b is not known, and does not count
    assert fake.asked == ["a", "b", "c"]


def test_only_facts_that_all_locators_could_locate_count(tmp_path: Path) -> None:
    found = survey(None, FACTS, {"one": Fake("1"), "two": Fake("2", fails={"a"})}, load, RunFolder(tmp_path), limit=1)
    assert {name: [r.value for r in results] for name, results in found.results.items()} == {
        "one": ["c1"],
        "two": ["c2"],
    }
    assert found.summary()["n_located"] == 1
    assert list(found.failed) == ["a"]


def test_settings_that_do_not_fit_are_said_before_any_fact(tmp_path: Path) -> None:
    first = Fake("1")
    with pytest.raises(ValueError, match="a window too large"):
        survey(None, FACTS, {"one": first, "two": Fake("unfit")}, load, RunFolder(tmp_path))
    assert first.asked == []
    with pytest.warns(UserWarning, match="window of 9 layers does not fit"):
        CausalTrace(site="ffn", window=9).check(tiny.build("llama"))
    refused(IndexError, "layer 9", Neurons(layers=(9,)).check, tiny.build("llama"))


@pytest.mark.parametrize("patience", [0, 1, 2, 3, 4])
def test_goes_on_where_it_was_stopped(tmp_path: Path, patience: int) -> None:
    whole = survey(None, FACTS, {"one": Fake("1")}, load, RunFolder(tmp_path / "whole"))
    first, second = Fake("1", patience), Fake("1")
    with pytest.raises(KeyboardInterrupt):
        survey(None, FACTS, {"one": first}, load, RunFolder(tmp_path / "run"))
    found = survey(None, FACTS, {"one": second}, load, RunFolder(tmp_path / "run"))
    assert [r.value for r in found.results["one"]] == [r.value for r in whole.results["one"]]
    assert (found.unknown, found.failed) == (whole.unknown, whole.failed)
    assert second.asked == [fact.id for fact in FACTS[patience:]]  # what was finished is not asked again


class Scores:
    def __init__(self, *values: float) -> None:
        self.values = values

    def layer_scores(self) -> Tensor:
        return torch.tensor(self.values)


def test_suggested_layers() -> None:
    assert suggest_layers(Scores(0.1, 0.5, 0.3)) == [1]
    assert suggest_layers(Scores(0.1, 0.5, 0.3, 0.5), n=3) == [1, 3, 2]
    for n in (0, 4):
        refused(ValueError, f"n={n} layers cannot be suggested from 3", suggest_layers, Scores(1, 2, 3), n)
    refused(ValueError, "no numbers", suggest_layers, Scores(1, float("nan")))


def refined(name: str, neurons: tuple[tuple[int, int], ...], by_layer: tuple[float, float]) -> NeuronsResult:
    """Of layers 3 and 5; the attributions of each layer sum to what is given."""
    values = torch.zeros(2, 4)
    values[:, 0] = torch.tensor(by_layer)
    question = Question(name, (7, 8), 2, (0, 1), "y", (4,), (1,))
    result = KnowledgeNeuronsResult(question, (3, 5), values, values, 0.5, "gradient", 1, "midpoint", "by hand")
    return NeuronsResult(neurons, dict.fromkeys(neurons, 1), 0.7, 0.2, (result,))


def test_counts_by_hand() -> None:
    counts = NeuronCounts.of(
        [
            refined("a", ((3, 0), (5, 1), (5, 2)), (0.1, 0.2)),
            refined("b", ((5, 1),), (0.4, 0.1)),
            refined("c", (), (0, 0.1)),
        ]
    )
    assert counts.per_fact == ((1, 2), (0, 1), (0, 0))
    assert [counts.mean(place)[0] for place in (0, 1)] == pytest.approx([1 / 3, 1.0])
    assert torch.allclose(counts.attribution, torch.tensor([0.5 / 3, 0.4 / 3]))
    assert counts.suggested() == suggest_layers(counts) == [3]  # the layer, and not its place
    assert counts.summary()["neurons_per_fact"] == pytest.approx(4 / 3)
    assert counts.table().row_count == 2
    refused(ValueError, "got 0 kinds", NeuronCounts.of, [])


@pytest.mark.parametrize(
    "other", [{"model": "another"}, {"method": "activation"}, {"steps": 2}, {"rule": "right"}, {"layers": (3, 4)}]
)
def test_neurons_of_different_settings_are_not_put_together(other: dict[str, Any]) -> None:
    one = refined("a", ((3, 0),), (0.1, 0.2))
    result = replace(one.results[0], **other)
    refused(ValueError, "different models or settings", refine, [one.results[0], result])
    refused(ValueError, "got 2 kinds", average, [one, replace(one, results=(result,))])
    refused(ValueError, "got 2 kinds", average, [one, replace(one, threshold=0.3)])
