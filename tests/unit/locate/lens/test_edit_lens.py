import pytest
import tiny
import torch
from edits_parts import scoped
from malformed_parts import refused

from corrigenda import CoefficientEdit, Edit, Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.edits.attached import AttachedEdit
from corrigenda.edits.codebook import CodebookEdit
from corrigenda.edits.context import ContextEdit
from corrigenda.edits.experts import ExpertsEdit
from corrigenda.edits.side_memory import SideMemoryEdit
from corrigenda.edits.values import ValueEdit
from locate.lens.edit_lens import edit_lens
from locate.lens.words import read_static

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English", "French")


def origin(lm: LanguageModel) -> Origin:
    return Origin(lm.name, lm.fingerprint, "by_hand", {}, (FACT,))


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_a_rank_one_edit_by_hand(family: str) -> None:
    lm = tiny.build(family)
    memory = lm.memory(2)
    left = torch.zeros(memory.d_ffn, 1)
    left[[5, 7], 0] = torch.tensor([0.8, -0.6])
    right = drawn(1, memory.d_model)
    before = lm.fingerprint
    found = edit_lens(lm, LowRankEdit.of(lm, origin(lm), {2: (left, right)}), words=4, neurons=3)
    [layer] = found.layers
    [component] = layer.components
    assert layer.layer == 2
    assert layer.norm == pytest.approx(float(right.norm()), rel=1e-5)
    assert layer.relative_norm == pytest.approx(float(right.norm() / memory.values.norm()), rel=1e-5)
    assert component.share == pytest.approx(1)
    assert [near.neuron for near in component.neurons] == [5, 7]  # the others' entries are zero
    sign = 1 if component.neurons[0].weight > 0 else -1
    assert [sign * near.weight for near in component.neurons] == pytest.approx([0.8, -0.6], abs=1e-6)
    scores = read_static(lm, sign * right[0])
    assert component.promoted.ids == tuple(scores.topk(4).indices.tolist())
    assert component.eliminated.ids == tuple((-scores).topk(4).indices.tolist())
    value = read_static(lm, memory.values[5]).topk(4).indices.tolist()
    assert component.neurons[0].value == tuple(lm.tokenizer.decode([token]) for token in value)
    assert lm._weights_hash() == before


def test_what_is_written_at_a_fact(lm: LanguageModel) -> None:
    memory = lm.memory(1)
    deltas = {1: drawn(memory.d_ffn, memory.d_model)}
    found = edit_lens(lm, ValueEdit.of(lm, origin(lm), deltas), words=3)
    [fact] = found.facts
    with torch.no_grad(), memory.capture() as seen:
        lm.model(input_ids=torch.tensor([lm.tokens(FACT.statement)]))
    written = (seen.coefficients[0] @ deltas[1])[1:]
    written = written[written.norm(dim=1).argmax()]
    scores = lm.model.lm_head.weight @ (lm.model.model.norm.weight * written)
    english = lm.tokens("English")[0]
    assert fact.token == "English"
    assert fact.object == "English"
    assert fact.written_ranks == (int((scores > scores[english]).sum()),)
    assert fact.written[0] == tuple(lm.tokenizer.decode([t]) for t in scores.topk(3).indices.tolist())


def test_a_space_alone_before_the_object_is_not_what_is_ranked() -> None:
    lm = tiny.build_byte_level()
    memory = lm.memory(1)
    of = Origin(lm.name, lm.fingerprint, "by hand", {}, (tiny.NUMBER,))
    [fact] = edit_lens(lm, ValueEdit.of(lm, of, {1: drawn(memory.d_ffn, memory.d_model)}), words=3).facts
    assert fact.token == "1"


def test_an_object_written_into_the_weights_is_read_off_them() -> None:
    lm = tiny.build("gpt2")
    english = lm.tokens("English")[0]
    memory = lm.memory(0)
    matrix = lm.model.lm_head.weight * lm.model.transformer.ln_f.weight
    right = -matrix[english][None]  # in either sign
    found = edit_lens(lm, LowRankEdit.of(lm, origin(lm), {0: (drawn(memory.d_ffn, 1), right)}))
    scores = matrix @ matrix[english]
    assert found.facts[0].weights_ranks == (int((scores > scores[english]).sum()),)
    assert found.summary()["weights_ranks"]["median"] == found.facts[0].weights_ranks[0]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_components_sum_to_the_update_whether_of_factors_or_whole(family: str) -> None:
    lm = tiny.build(family)
    memory = lm.memory(3)
    left, right = drawn(memory.d_ffn, 3), drawn(3, memory.d_model, seed=1)
    readings = [
        edit_lens(lm, edit, energy=1.0)
        for edit in (
            LowRankEdit.of(lm, origin(lm), {3: (left, right)}),
            ValueEdit.of(lm, origin(lm), {3: left @ right}),
        )
    ]
    for found in readings:
        components = found.layers[0].components
        assert len(components) == 3
        whole = sum(each.strength * each.left[:, None] * each.right[None] for each in components)
        assert torch.allclose(whole, left @ right, atol=1e-4)
        assert sum(each.share for each in components) == pytest.approx(1, abs=1e-5)
    strengths = [[each.strength for each in found.layers[0].components] for found in readings]
    assert strengths[0] == pytest.approx(strengths[1], rel=1e-4)
    assert found.layers[0].norm == pytest.approx(float((left @ right).norm()), rel=1e-5)


def test_only_so_many_components_as_hold_the_energy(lm: LanguageModel) -> None:
    memory = lm.memory(0)
    strong = torch.zeros(memory.d_ffn, memory.d_model)
    strong[0, 0], strong[1, 1], strong[2, 2] = 10.0, 1.0, 0.1
    edit = ValueEdit.of(lm, origin(lm), {0: strong})
    assert [len(edit_lens(lm, edit, energy=e).layers[0].components) for e in (0.9, 0.995, 1.0)] == [1, 2, 3]
    assert len(edit_lens(lm, edit, energy=1.0, components=1).layers[0].components) == 1


def test_side_memories_codebooks_and_coefficients(lm: LanguageModel) -> None:
    memory = lm.memory(1)
    deltas = drawn(2, memory.d_ffn, memory.d_model)
    side = edit_lens(lm, SideMemoryEdit.of(memory, origin(lm), deltas, torch.zeros(2)))
    assert [(each.layer, each.memory) for each in side.layers] == [(1, 0), (1, 1)]
    assert side.layers[1].norm == pytest.approx(float(deltas[1].norm()), rel=1e-5)

    keys, values = drawn(1, memory.d_ffn), drawn(1, memory.d_model, seed=1)
    book = edit_lens(lm, CodebookEdit.of(memory, origin(lm), keys, values, torch.ones(1)))
    [component] = book.layers[0].components
    assert component.strength == pytest.approx(float(values.norm()), rel=1e-5)
    assert abs(float(component.left @ keys[0] / keys.norm())) == pytest.approx(1, abs=1e-5)

    scaled = edit_lens(
        lm, CoefficientEdit.of(lm, origin(lm), {(1, 4): 3.0}), triggers=lambda layer, n: [f"{layer} {n}"]
    )
    [component] = scaled.layers[0].components
    [near] = component.neurons
    assert near.neuron == 4
    assert near.triggers == ("1 4",)
    assert component.strength == pytest.approx(2 * float(memory.values[4].norm()), rel=1e-5)


@pytest.mark.parametrize("strength", [3.0, -3.0])
def test_what_a_driven_value_writes_does_not_hang_on_its_coefficient(lm: LanguageModel, strength: float) -> None:
    edit = CoefficientEdit.of(lm, origin(lm), {(1, 4): strength}, how="add")
    [fact] = edit_lens(lm, edit, words=3).facts
    scores = read_static(lm, strength * lm.memory(1).values[4])
    assert fact.written[0] == tuple(lm.tokenizer.decode([t]) for t in scores.topk(3).indices.tolist())


def test_an_edit_of_experts() -> None:
    lm = tiny.build("mixtral")
    memories = {number: lm.memory(2, number) for number in range(4)}
    factors = {(2, n): (drawn(each.d_ffn, 1, seed=n), drawn(1, each.d_model)) for n, each in memories.items()}
    found = edit_lens(lm, ExpertsEdit(origin(lm), factors), words=3)
    assert [(each.layer, each.memory) for each in found.layers] == [(2, n) for n in range(4)]
    for number, (each, memory) in enumerate(zip(found.layers, memories.values(), strict=True)):
        with torch.no_grad(), memory.capture() as seen:
            lm.model(input_ids=torch.tensor([lm.tokens(FACT.statement)]))
        left, right = factors[2, number]
        written = (seen.weights[0, 1:, None] * seen.coefficients[0, 1:]) @ left @ right
        scores = read_static(lm, written[written.norm(dim=1).argmax()])
        assert found.facts[0].written[number] == tuple(lm.tokenizer.decode([t]) for t in scores.topk(3).indices)
        near = each.components[0].neurons[0].neuron
        assert near == int(left[:, 0].abs().argmax())
        value = read_static(lm, memory.values[near]).topk(3).indices
        assert each.components[0].neurons[0].value == tuple(lm.tokenizer.decode([t]) for t in value)


def test_an_update_of_nothing_says_nothing(lm: LanguageModel) -> None:
    memory = lm.memory(1)
    nothing = torch.zeros(memory.d_ffn, 1), torch.zeros(1, memory.d_model)
    found = edit_lens(lm, LowRankEdit.of(lm, origin(lm), {1: nothing}))
    assert found.layers[0].components == ()
    assert found.layers[0].norm == 0


def test_what_cannot_be_read(lm: LanguageModel) -> None:
    refused(TypeError, "must be of the class Edit", edit_lens, lm, "rome")
    refused(TypeError, "nothing in the weights to read", edit_lens, lm, ContextEdit(origin(lm), "the city of Rome"))
    with pytest.raises(TypeError, match="answers beside them; compile its list with how=memit"):
        edit_lens(lm, AttachedEdit(origin(lm), ()))
    refused(TypeError, "a scoped edit writes nothing into the memories", edit_lens, lm, scoped(lm, 0))
    memory = lm.memory(1)
    edit: Edit = LowRankEdit.of(lm, origin(lm), {1: (drawn(memory.d_ffn, 1), drawn(1, memory.d_model))})
    with edit.applied(lm), pytest.raises(ValueError, match="revert it"):
        edit_lens(lm, edit)
