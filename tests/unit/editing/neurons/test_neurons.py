from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import CoefficientEdit, Edit, Fact, LanguageModel
from corrigenda.forward.recording import forward_logits
from corrigenda.models.inspection import inspect_family
from editing import Enhance, EraseNeurons, Suppress, UpdateNeurons, erase_relation
from editing.editor import Editor, EditRefusedError
from locate.neurons.locator import Neurons

EIFFEL = Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris", id="eiffel", relation="city")
BEN = Fact("Big Ben", "{} stands in the city of", "Berlin", "London", id="ben", relation="city")
THOMAS = Fact("Thomas", "{} plays the", "piano", "guitar", id="thomas", relation="plays")
ERASE = Fact("Big Ben", "{} stands in the city of", None, "London", id="erase")
INSERT = Fact("Thomas", "{} plays the", "piano", id="insert")

EDITORS: list[Callable[..., Editor]] = [Suppress, Enhance, UpdateNeurons, EraseNeurons]


def logits(lm: LanguageModel, prompt: str) -> Tensor:
    batch = lm.batch([lm.tokens(prompt)])
    with torch.no_grad():
        return forward_logits(lm, batch, batch.lengths - 1)[0]


def token(lm: LanguageModel, word: str) -> int:
    return int(lm.tokenizer(word)["input_ids"][0])


def test_where_neurons_come_from(lm: LanguageModel) -> None:
    by_fact = {"eiffel": [(1, 3)], "ben": [(1, 3), (-1, 7)]}
    edit = Suppress(neurons=by_fact).edit(lm, [EIFFEL, BEN])
    assert {layer: pair[0].tolist() for layer, pair in edit.scales.items()} == {1: [3], 3: [7]}
    assert [entry["neurons"] for entry in edit.origin.report] == [[[1, 3]], [[1, 3], [3, 7]]]

    asked = []

    def find(model: LanguageModel, fact: Fact) -> list[tuple[int, int]]:
        asked.append((model, fact))
        return [(0, len(asked))]

    edit = Suppress(find=find).edit(lm, [EIFFEL, BEN])
    assert asked == [(lm, EIFFEL), (lm, BEN)]
    assert edit.scales[0][0].tolist() == [1, 2]


@pytest.mark.parametrize("editor", EDITORS)
def test_a_locator_by_configuration(editor: Callable[..., Editor], tmp_path: Path) -> None:
    lm = tiny.build("gpt2")
    find = Neurons(steps=2, layers=(1, 2))
    fact = Fact("Thomas", "{} plays the", "piano", "guitar", paraphrases=("Thomas plays a",), id="thomas")
    edit = editor(find=find).edit(lm, [fact])
    assert edit.origin.report[0]["neurons"] == [list(place) for place in find(lm, fact)]
    edit.save(tmp_path)
    settings = Edit.load(tmp_path).origin.settings
    assert settings["find"]["name"] == "Neurons"
    assert settings["find"]["steps"] == 2


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Suppress(), ValueError, "either neurons or a callable"),
        (lambda: Suppress(neurons=[(0, 1)], find=lambda lm, fact: []), ValueError, "either neurons or a callable"),
        (lambda: Suppress(neurons=[3]), ValueError, "pair"),
        (lambda: Enhance(neurons=[(0, 1)], factor=float("inf")), ValueError, "finite"),
        (lambda: UpdateNeurons(neurons=[(0, 1)], write=float("nan")), ValueError, "finite"),
        (
            lambda: Suppress(neurons={"eiffel": [(0, 1)]}),
            EditRefusedError,
            "fact 'insert': .* no neurons are given",
        ),
        (lambda: Suppress(find=lambda lm, fact: []), EditRefusedError, "has no neuron"),
        (lambda: Suppress(find=Neurons(steps=1)), EditRefusedError, "without a true object"),
        *((lambda at=at: Suppress(neurons=[at]), IndexError, "layer 9|neuron") for at in ((9, 0), (0, 48), (0, -1))),
        *((lambda e=e: e(neurons=[(2, 5)], positions="last"), ValueError, "positions='l") for e in (Suppress, Enhance)),
        *(
            (lambda wrong=wrong: EraseNeurons(neurons=[(0, 1)], **wrong), ValueError, "must|filled")
            for wrong in ({"fill": "median"}, {"share": 1.0}, {"share": -0.1}, {"most": 0})
        ),
    ],
)
def test_refused(make: Any, error: type[Exception], says: str, lm: LanguageModel) -> None:
    with pytest.raises(error, match=says):
        make().edit(lm, [INSERT])


def test_suppress_and_enhance_scale_by_0_and_2(lm: LanguageModel) -> None:
    for editor, factor in ((Suppress, 0.0), (Enhance, 2.0)):
        edit = editor(neurons=[(2, 5), (2, 1)]).edit(lm, [EIFFEL, ERASE, INSERT])
        assert isinstance(edit, CoefficientEdit)
        assert edit.scales[2][0].tolist() == [5, 1]
        assert edit.scales[2][1].tolist() == [factor, factor]
    assert Enhance(neurons=[(2, 5)], factor=10.0).edit(lm, [BEN]).scales[2][1].tolist() == [10.0]


@pytest.mark.parametrize("editor", [Suppress, Enhance])
def test_where_neurons_are_scaled(lm: LanguageModel, editor: type[Suppress] | type[Enhance]) -> None:
    """Everywhere by default; the paper's way is a setting."""
    assert editor(neurons=[(2, 5)]).edit(lm, [BEN]).positions == "all"
    assert editor(neurons=[(2, 5)], positions="predicting").edit(lm, [BEN]).positions == "predicting"


def direction(lm: LanguageModel, statement: str, word: str) -> Tensor:
    """The unit gradient of a word's logit in what enters the final norm, by hand for a layer norm with weight and bias:
    (I - 11^T/d - x x^T/d) diag(w) u / sd, x being the normalised state."""
    seen: list[Tensor] = []
    norm = lm.architecture.final_norm
    assert norm is not None
    handle = norm.register_forward_pre_hook(lambda _module, args: seen.append(args[0][0, -1].double()))
    logits(lm, statement)
    handle.remove()
    state = seen[0] - seen[0].mean()
    state = state / (state.square().mean() + norm.eps).sqrt()
    row = norm.weight.double() * lm.model.get_output_embeddings().weight[token(lm, word)].double()
    row = row - row.mean() - state * (state * row).mean()
    return (row / row.norm()).float()


def test_a_family_that_was_inspected_has_the_same_directions() -> None:
    known, inspected = tiny.build("gpt2"), tiny.build("gpt2")
    with torch.no_grad():  # a norm that treats dimensions differently
        for lm in (known, inspected):
            weight = lm.model.transformer.ln_f.weight
            weight.copy_(torch.linspace(0.2, 3, len(weight)))
    inspected = LanguageModel(inspected.model, inspected.tokenizer, "inspected", inspect_family(inspected.model))
    assert inspected.architecture.final_norm is None
    editor = UpdateNeurons(neurons=[(1, 3), (2, 0)])
    expected, found = editor.edit(known, [EIFFEL]), editor.edit(inspected, [EIFFEL])
    for layer in (1, 2):
        assert torch.allclose(found.delta(layer), expected.delta(layer), atol=1e-6)


def test_update_by_hand() -> None:
    lm = tiny.build("gpt2")
    edit = UpdateNeurons(neurons=[(1, 3), (1, 8), (1, 9), (2, 0)], unwrite=0.5, write=3.0).edit(lm, [EIFFEL])
    change = 3.0 * direction(lm, EIFFEL.statement, "Rome") - 0.5 * direction(lm, EIFFEL.statement, "Paris")
    batch = lm.batch([lm.tokens(EIFFEL.statement)])
    with lm.memory(1).capture(batch.lengths - 1) as one, lm.memory(2).capture(batch.lengths - 1) as two:
        forward_logits(lm, batch, batch.lengths - 1)
    assert len({float(one.coefficients[0, n].sign()) for n in (3, 8, 9)}) == 2  # the example has both signs
    for layer, m, neurons in ((1, one.coefficients[0], [3, 8, 9]), (2, two.coefficients[0], [0])):
        values = lm.memory(layer).values
        expected = torch.zeros_like(values)
        for neuron in neurons:
            expected[neuron] = m[neuron].sign() * values[neuron].norm() * change
        torch.testing.assert_close(edit.delta(layer), expected, atol=1e-5, rtol=1e-4)
    assert set(edit.factors) == {1, 2}


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "opt"])
def test_update_raises_the_new_object_over_the_old(family: str) -> None:
    lm = tiny.build(family)
    edit = UpdateNeurons(neurons=[(-1, neuron) for neuron in range(40)]).edit(lm, [EIFFEL])
    new, old = token(lm, "Rome"), token(lm, "Paris")
    before = logits(lm, EIFFEL.statement).log_softmax(-1)
    with edit.applied(lm):
        after = logits(lm, EIFFEL.statement).log_softmax(-1)
    assert after[new] - after[old] > before[new] - before[old] + 0.5


def test_update_of_several_facts_and_verbs() -> None:
    lm = tiny.build("gpt2")
    together = UpdateNeurons(neurons=[(1, 3)]).edit(lm, [EIFFEL, ERASE, INSERT])
    apart = [UpdateNeurons(neurons=[(1, 3)]).edit(lm, [fact]) for fact in (EIFFEL, ERASE, INSERT)]
    torch.testing.assert_close(together.delta(1), sum(edit.delta(1) for edit in apart), atol=1e-5, rtol=1e-4)
    scale = float(lm.memory(1).values[3].norm())
    assert apart[1].norm(1) == pytest.approx(1.0 * scale, rel=1e-4)  # only what is taken away
    assert apart[2].norm(1) == pytest.approx(1.0 * scale, rel=1e-4)  # only what is added


def test_update_of_a_masked_model() -> None:
    lm = tiny.build("bert")
    lm.tokenizer.mask_token = "?"
    two = Fact("the Eiffel tower", "{} is ? in the city of ?", "Rome", "Paris")
    with pytest.raises(EditRefusedError, match="has 2 masks"):
        UpdateNeurons(neurons=[(-1, 3)]).edit(lm, [two])
    fact = Fact("the Eiffel tower", "{} is located in the city of ? .", "Rome", "Paris")
    edit = UpdateNeurons(neurons=[(-1, neuron) for neuron in range(40)]).edit(lm, [fact])
    batch = lm.batch([lm.tokens(fact.statement)])
    at = torch.tensor([lm.tokens(fact.statement).index(lm.tokenizer.mask_token_id)])
    before = forward_logits(lm, batch, at)[0]
    with edit.applied(lm):
        after = forward_logits(lm, batch, at)[0]
    new, old = token(lm, "Rome"), token(lm, "Paris")
    assert after[new] - after[old] > before[new] - before[old] + 0.5


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_erased_values_are_zero_or_the_mean(family: str) -> None:
    lm = tiny.build(family)
    values = lm.memory(2).values.clone()
    for fill, expected in (("zero", torch.zeros(tiny.WIDTH)), ("mean", values.mean(0))):
        edit = EraseNeurons(neurons=[(2, 4), (2, 9)], fill=fill).edit(lm, [ERASE])  # type: ignore[arg-type]
        with edit.applied(lm):
            now = lm.memory(2).values.clone()
        for neuron in range(len(values)):
            if neuron in (4, 9):
                torch.testing.assert_close(now[neuron], expected, atol=0 if fill == "zero" else 1e-6, rtol=0)
            else:
                assert torch.equal(now[neuron], values[neuron])
    assert torch.equal(lm.memory(2).values, values)


def test_erase_takes_what_the_facts_of_a_relation_share(lm: LanguageModel) -> None:
    neurons = {"eiffel": [(1, 1), (1, 2)], "ben": [(1, 2), (1, 3)], "thomas": [(2, 5), (1, 1)]}
    edit = EraseNeurons(neurons=neurons).edit(lm, [EIFFEL, BEN, THOMAS])
    changed = {(layer, int(n)) for layer in edit.factors for n in edit.delta(layer).norm(dim=1).nonzero()[:, 0]}
    assert changed == {(1, 2), (2, 5), (1, 1)}
    papers = EraseNeurons(neurons=neurons, share=0.0, most=1).edit(lm, [EIFFEL, BEN])  # the most frequent
    assert papers.delta(1).norm(dim=1).nonzero()[:, 0].tolist() == [2]
    with pytest.raises(EditRefusedError, match="no neuron is in more than 70% of the 2 facts of relation 'city'"):
        EraseNeurons(neurons={"eiffel": [(1, 1)], "ben": [(1, 3)]}).edit(lm, [EIFFEL, BEN])


def test_erase_relation(lm: LanguageModel) -> None:

    def find(_lm: LanguageModel, fact: Fact) -> list[tuple[int, int]]:
        return [(1, 2), (1, 3)] if fact.id == "ben" else [(1, 2)]

    edit = erase_relation(lm, [EIFFEL, BEN], find)
    assert edit.delta(1).norm(dim=1).nonzero()[:, 0].tolist() == [2]
    assert edit.origin.editor == "erase_neurons"
    for facts in ([EIFFEL, THOMAS], [ERASE], []):
        with pytest.raises(ValueError, match="one relation"):
            erase_relation(lm, facts, find)
