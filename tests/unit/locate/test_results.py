import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from rich.console import Console

from corrigenda import Fact
from locate import CausalTrace, Neurons, Noise, average
from locate.neurons.counts import NeuronCounts
from locate.neurons.knowledge_neurons import knowledge_neurons
from locate.neurons.suppression import scaling_check

FACTS = [
    Fact("Danielle Darrieux", "the mother tongue of {} is", "English", paraphrases=("Danielle speaks",)),
    Fact("Thomas", "the mother tongue of {} is", "Dutch"),
]


def results() -> dict[str, Any]:
    lm = tiny.build("llama")
    tracer = CausalTrace(noise=Noise(samples=2, sigma=2.0))
    traces = [tracer.find(lm, fact, "top") for fact in FACTS]
    neurons = [Neurons(steps=2, answer="top").find(lm, fact) for fact in FACTS]
    return {
        "trace": traces[0],
        "average": average(traces),
        "knowledge neurons": knowledge_neurons(lm, FACTS[0], "top", steps=2),
        "refined": neurons[0],
        "counts": NeuronCounts.of(neurons),
        "scaling": scaling_check(lm, neurons[0], draws=2, neurons=[(1, 3), (2, 5)]),
    }


@pytest.mark.parametrize("name", ["trace", "average", "knowledge neurons", "refined", "counts", "scaling"])
def test_all_results_are_alike(name: str, tmp_path: Path) -> None:
    result = results()[name]
    json.dumps(result.summary())
    console = Console(width=200, record=True)
    console.print(result.table())
    assert len(console.export_text().splitlines()) > 3
    result.plot(tmp_path / "pictures" / "it.svg")
    assert (tmp_path / "pictures" / "it.svg").stat().st_size > 1000
    with pytest.raises(ValueError, match=r"\.png, \.pdf, \.svg"):
        result.plot(tmp_path / "it.gif")
    result.save(tmp_path / "saved")
    loaded = type(result).load(tmp_path / "saved")
    assert loaded.summary() == result.summary()
    for field, value in vars(result).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(loaded, field).nan_to_num(), value.nan_to_num())
        elif field != "results":
            assert getattr(loaded, field) == value
    with pytest.raises(FileNotFoundError):
        type(result).load(tmp_path)


def test_tables_by_hand() -> None:
    found = results()
    trace, refined = found["trace"], found["refined"]
    table = trace.table()
    assert table.row_count == len(trace.tokens)
    peaks = list(table.columns[2].cells)
    assert peaks == [str(int(column.argmax())) for column in trace.indirect_effects.T]
    assert list(refined.table().columns[0].cells) == [str(layer) for layer, _ in refined.neurons]
    top = found["knowledge neurons"]
    assert list(top.table(3).columns[1].cells) == [str(neuron) for _, neuron in top.top(3)]
