import pytest
import tiny
import torch
from by_hooks import changed, leaving
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.moments.text import Text
from locate.lens import aggregation as module
from locate.lens.aggregation import CASES, Aggregation, aggregation
from locate.lens.words import read_states, read_static

TEXT = Text(tokens=120, length=10)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOKENS", 50)


@torch.no_grad()
def left(lm: LanguageModel, ids: list[int], layer: int, silent: bool = False) -> Tensor:
    """What leaves a block at a text's end; with `silent` the FFN's value matrix of the layer gives nothing."""
    values = lm.architecture.values(layer)
    with leaving(lm.architecture.block(layer)) as seen, changed(values, lambda _, out: out * 0 if silent else out):
        lm.model(input_ids=torch.tensor([ids]), use_cache=False)
    return seen[0][0, -1]


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_figures_are_those_of_single_texts(family: str) -> None:
    lm = tiny.build(family)
    found = aggregation(lm, TEXT, texts=8, holding=0.8, seed=1)
    sequences = TEXT.sequences(lm)
    assert found.signed == (lm.memory(0).gates is not None)
    assert len(set(found.positions.tolist())) > 2
    for number, position in enumerate(found.positions.tolist()):
        ids = sequences[number][: position + 1]
        with torch.no_grad():
            final = lm.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        assert int(found.after[-1, number]) == int(final.argmax())
        for layer in (0, tiny.DEPTH - 1):
            after, before = left(lm, ids, layer), left(lm, ids, layer, silent=True)
            assert int(found.after[layer, number]) == int(read_states(lm, after).argmax())
            assert int(found.before[layer, number]) == int(read_states(lm, before).argmax())
            assert int(found.added[layer, number]) == int(read_static(lm, after - before).argmax())
            likely = read_states(lm, before).softmax(-1)[int(final.argmax())]
            assert float(found.p_before[layer, number]) == pytest.approx(float(likely), abs=1e-4)
            with lm.memory(layer).capture() as seen, torch.no_grad():
                lm.model(input_ids=torch.tensor([ids]), use_cache=False)
            m, output = seen.coefficients[0, -1], seen.output[0, -1]
            weights = sorted((m.abs() * lm.memory(layer).values.norm(dim=1)).tolist(), reverse=True)
            n = next(n for n in range(1, len(weights) + 1) if sum(weights[:n]) >= 0.8 * sum(weights) * (1 - 1e-6))
            assert abs(float(found.active[layer, number]) - n / len(m)) <= 1.01 / len(m)  # sums round
            assert float(found.positive[layer, number]) == pytest.approx(float((m > 0).sum()) / len(m))
            top = int(read_static(lm, output).argmax())
            values = lm.memory(layer).values * m.sign()[:, None]
            said = set(read_static(lm, values[m != 0]).argmax(dim=-1).tolist())
            assert bool(found.alone[layer, number]) == (top not in said)


def made() -> Aggregation:
    """Three layers at four positions; the final tokens are 1, 2, 3, 4."""
    tokens = {
        "before": [[1, 9, 9, 4], [1, 2, 9, 9], [1, 2, 9, 4]],
        "added": [[1, 5, 8, 7], [7, 2, 5, 9], [1, 6, 3, 4]],
        "after": [[1, 5, 7, 4], [1, 2, 9, 9], [1, 2, 3, 4]],
    }
    shares = {name: torch.full((3, 4), 0.25) for name in ("active", "positive", "p_before")}
    alone = torch.tensor([[True] * 4, [False] * 4, [True, False] * 2])
    return Aggregation(
        "x", 0.9, True, torch.arange(4), alone=alone, **shares, **{k: torch.tensor(v) for k, v in tokens.items()}
    )


def test_cases_by_hand() -> None:
    found = made()
    names = [[CASES[number] for number in row] for row in found.cases.tolist()]
    assert names == [
        ["agreement", "override", "composition", "residual"],
        ["residual", "agreement", "residual", "agreement"],
        ["agreement", "residual", "override", "agreement"],
    ]
    assert [[mean.mean for mean in found.by_layer[name]] for name in CASES] == [
        [0.25, 0.5, 0.25],
        [0.25, 0.5, 0.5],
        [0.25, 0.0, 0.25],
        [0.25, 0.0, 0.0],
    ]
    assert [mean.mean for mean in found.by_layer["early"]] == [0.5, 0.5, 0.75]
    assert found.settled.tolist() == [0, 1, 3, 2]
    assert [mean.mean for mean in found.by_layer["alone"]] == [1, 0, 0.5]
    assert found.summary()["alone"]["mean"] == pytest.approx(0.5)
    assert found.summary()["settled_in_lower_half"]["mean"] == pytest.approx(0.5)


def test_bad_input(lm: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"text.length=1: sequences of at least 2 tokens are needed"):
        aggregation(lm, Text(tokens=12, length=1))
    with pytest.raises(ValueError, match=r"holding=0\.0 must be above 0"):
        aggregation(lm, TEXT, holding=0.0)
