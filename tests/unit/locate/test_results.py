import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from edits_parts import same as same_state
from edits_parts import state
from golden.locators import RESULTS
from rich.console import Console

from corrigenda import Fact, LanguageModel
from locate import CausalTrace, Neurons, Noise
from locate.neurons.knowledge_neurons import knowledge_neurons
from locate.saving import SavedResult

FACTS = [
    Fact("Danielle Darrieux", "the mother tongue of {} is", "English", paraphrases=("Danielle speaks",)),
    Fact("Thomas", "the mother tongue of {} is", "Dutch"),
]


ONE_OF_A_KIND = (
    *("trace_ffn", "trace_average", "knockout", "knockout_average", "attributes", "decode_early", "transplant_add"),
    *("logit_lens", "logit_attribution", "early_exit", "backward", "edit_lens_rome", "saturation", "triggers"),
    *("sensitivity", "agreement", "aggregation", "sub_updates", "values", "knowledge_neurons_gradient", "neurons"),
    *("neuron_counts", "relation", "relations", "circuit", "circuits", "circuit_change"),
    *("dictionary", "features", "features_together"),
)


lm = pytest.fixture(tiny.llama, scope="module")


@pytest.fixture(scope="module")
def results(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedResult]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRIGENDA_CACHE", str(tmp_path_factory.mktemp("cache")))
        before = state(lm)
        found = {name: RESULTS[name](lm) for name in ONE_OF_A_KIND}
        assert same_state(state(lm), before)  # the model is left alone: its weights, and no hook on it
        return found


def test_there_is_one_of_every_kind(results: dict[str, SavedResult]) -> None:
    kinds = {cls for cls in SavedResult.__subclasses__() if cls.__module__.startswith("locate.")}
    assert kinds == {*map(type, results.values())}


def same(left: Any, right: Any) -> bool:
    """Whether two results, or parts of results, are equal; a NaN equals itself."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left.nan_to_num(), right.nan_to_num())
    if dataclasses.is_dataclass(left):
        names = [field.name for field in dataclasses.fields(left)]
        return type(left) is type(right) and all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right or (left != left and right != right)


@pytest.mark.parametrize("name", ONE_OF_A_KIND)
def test_all_results_are_alike(results: dict[str, SavedResult], name: str, tmp_path: Path) -> None:
    result = results[name]
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
    assert same(loaded, result)
    with pytest.raises(FileNotFoundError, match="holds no"):
        type(result).load(tmp_path)


def test_tables_by_hand(lm: LanguageModel) -> None:
    trace = CausalTrace(noise=Noise(samples=2, sigma=2.0)).find(lm, FACTS[0], "top")
    refined = Neurons(steps=2, answer="top").find(lm, FACTS[0])
    table = trace.table()
    assert table.row_count == len(trace.tokens)
    peaks = list(table.columns[2].cells)
    assert peaks == [str(int(column.argmax())) for column in trace.indirect_effects.T]
    assert list(refined.table().columns[0].cells) == [str(layer) for layer, _ in refined.neurons]
    top = knowledge_neurons(lm, FACTS[0], "top", steps=2)
    assert list(top.table(3).columns[1].cells) == [str(neuron) for _, neuron in top.top(3)]
