import pytest
import tiny
import torch
from malformed_parts import refused
from transformers import DynamicCache

from corrigenda.dictionaries import dictionary
from corrigenda.dictionaries.dictionary import FeatureDictionary, largest
from corrigenda.errors import UnsupportedModelError, WrongModelError
from corrigenda.forward.generation import decode, never
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record

ENCODER = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]])
DECODER = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
BIAS, SHIFT = torch.tensor([0.0, -1.0, 0.5]), torch.tensor([1.0, 1.0])


def made(**more):  # type: ignore[no-untyped-def]
    return FeatureDictionary(0, ENCODER, BIAS, DECODER, SHIFT, **more)


def test_each_kind_by_hand() -> None:
    x = torch.tensor([2.0, 4.0])  # scores 2, 3, 2.5
    assert made().encode(x).tolist() == [2.0, 3.0, 2.5]
    assert made(k=1).encode(x).tolist() == [0.0, 3.0, 0.0]
    assert made(threshold=torch.tensor([2.0, 0.0, 2.4])).encode(x).tolist() == [0.0, 3.0, 2.5]
    assert made(centred=True).encode(x).tolist() == [1.0, 2.0, 2.5]
    assert made(k=2).encode(-x).tolist() == [0.0, 0.0, 0.0]  # what is below 0 never fires
    assert made()(x).tolist() == [2.0 + 2.5 + 1, 6.0 + 2.5 + 1]
    assert made(k=1)(x).tolist() == [1.0, 7.0]
    skip = torch.tensor([[0.0, 1.0], [10.0, 0.0]])
    crossing = made(k=1, skip=skip, reads="input")
    assert crossing(x).tolist() == [1.0 + 4.0, 7.0 + 20.0]
    assert crossing.decode(crossing.encode(x), x).tolist() == crossing(x).tolist()
    refused(ValueError, "needs the FFN's input", crossing.decode, crossing.encode(x))


@pytest.mark.parametrize("centred", [True, False])
def test_the_forward_of_many_rows_is_the_plain_formula(monkeypatch: pytest.MonkeyPatch, centred: bool) -> None:
    monkeypatch.setattr(dictionary, "ROWS", 64)  # the last ones are fewer
    draw = torch.Generator().manual_seed(0)
    encoder, bias, decoder, shift = (
        torch.randn(size, generator=draw) for size in ((2048, 24), (2048,), (2048, 24), (24,))
    )
    x = torch.randn(15, 10, 24, generator=draw)
    one = FeatureDictionary(0, encoder, bias - 13, decoder, shift, k=20, centred=centred)
    scores = ((x - shift if centred else x) @ encoder.T + bias - 13).relu()
    kept = scores * (scores >= scores.topk(20).values[..., -1:])
    assert 0 < int(((kept > 0).sum(-1) < 20).sum()) < 150  # at some rows fewer fire than are chosen
    assert torch.equal(one.encode(x) > 0, kept > 0)
    assert torch.allclose(one.encode(x), kept, atol=1e-5)
    assert torch.allclose(one(x), kept @ decoder + shift, atol=1e-4)


@pytest.mark.parametrize(("n_features", "k"), [(640, 1), (640, 10), (4608, 32), (641, 10), (640, 11)])
def test_the_largest_are_those_of_topk(n_features: int, k: int) -> None:
    scores = torch.randn(30, n_features, generator=torch.Generator().manual_seed(0))
    scores[3] = scores[3].sort().values  # whole groups are among the largest
    scores[4, ::40] = torch.inf
    scores[5, :3], scores[6] = torch.nan, torch.nan
    values, places = largest(scores, k)
    expected = scores.topk(k).values
    assert torch.equal(scores.gather(1, places).nan_to_num(7.5), values.nan_to_num(7.5))
    assert torch.equal(values.sort(descending=True).values.nan_to_num(7.5), expected.nan_to_num(7.5))
    ties = largest(torch.zeros(2, n_features), k)[1]
    assert all(len({*row}) == k for row in ties.tolist())


def test_gradients_go_through_what_is_chosen() -> None:
    draw = torch.Generator().manual_seed(0)
    parts = [torch.randn(size, generator=draw) for size in ((640, 6), (640,), (640, 6), (6,))]
    x = torch.randn(5, 6, generator=draw, requires_grad=True)
    one = FeatureDictionary(0, *parts, k=8)
    [found] = torch.autograd.grad(one(x).square().sum(), x)
    scores = one.scores(x)
    kept = scores * (scores >= scores.topk(8).values[:, -1:])
    [expected] = torch.autograd.grad((kept @ parts[2] + parts[3]).square().sum(), x)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_a_text_of_one_token_has_nothing_to_put_in() -> None:
    lm = tiny.build("llama")
    batch = lm.batch([lm.tokens("the")])
    assert batch.input_ids.shape[1] == 1
    plain = forward_logits(lm, batch, batch.lengths - 1)
    eye = torch.eye(tiny.WIDTH)
    with FeatureDictionary(1, eye, eye[0], eye, eye[0], k=2).spliced(lm):
        assert torch.equal(forward_logits(lm, batch, batch.lengths - 1), plain)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_a_dictionary_of_the_unit_vectors_changes_nothing(family: str) -> None:
    lm = tiny.build(family)
    eye = torch.eye(tiny.WIDTH)
    whole, none = torch.cat([eye, -eye]), torch.zeros(2 * tiny.WIDTH)
    batch = lm.batch([lm.tokens("the capital of France is"), lm.tokens("a river in")])
    plain = forward_logits(lm, batch, batch.lengths - 1)
    same = FeatureDictionary(1, whole, none, whole, none[: tiny.WIDTH])
    with same.spliced(lm):
        assert torch.allclose(forward_logits(lm, batch, batch.lengths - 1), plain, atol=1e-5)
    with FeatureDictionary(1, whole, none, 0 * whole, none[: tiny.WIDTH]).spliced(lm):
        assert not torch.allclose(forward_logits(lm, batch, batch.lengths - 1), plain, atol=1e-3)
    assert torch.equal(forward_logits(lm, batch, batch.lengths - 1), plain)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_is_generated_with_the_cache_is_what_is_generated_without_it(family: str) -> None:
    lm, draw = tiny.build(family), torch.Generator().manual_seed(0)
    parts = [torch.randn(size, generator=draw) for size in ((20, 32), (20,), (20, 32), (32,))]
    one = FeatureDictionary(1, *parts, k=3)
    prompts = ["the capital of France is", "the river", "a", "the capital of Italy is"]
    ids = [lm.tokens(prompt) for prompt in prompts]

    def plainly() -> list[list[int]]:
        rows = [list(each) for each in ids]
        for row in rows:
            for _ in range(6):
                row.append(int(lm.model(torch.tensor([row])).logits[0, -1].argmax()))
        return [row[len(each) :] for row, each in zip(rows, ids, strict=True)]

    with one.spliced(lm), torch.no_grad():
        expected = plainly()
        assert decode(lm, ids, 6, stop=never) == expected
        whole, begun = torch.tensor([ids[0]]), DynamicCache()
        lm.model(whole[:, :3], past_key_values=begun, use_cache=True)
        later = lm.model(whole[:, 3:], past_key_values=begun, use_cache=True).logits
        assert torch.allclose(later, lm.model(whole).logits[:, 3:], atol=1e-4)
    with torch.no_grad():
        assert plainly() != expected


def test_the_first_position_is_that_of_the_text_wherever_a_forward_starts() -> None:
    lm, draw = tiny.build("llama"), torch.Generator().manual_seed(0)
    parts = [torch.randn(size, generator=draw) for size in ((20, 32), (20,), (20, 32), (32,))]
    batch = lm.batch([lm.tokens("the capital of France is"), lm.tokens("the river")])
    with FeatureDictionary(2, *parts, k=3).spliced(lm):
        whole = forward_logits(lm, batch, batch.lengths - 1)
        forward = PartialForward(lm, record(lm, batch, [1]), 1, batch.lengths - 1)
        assert torch.allclose(forward.logits(forward.local(batch.lengths - 1)), whole, atol=1e-4)
        left = torch.zeros(2, 5, dtype=torch.long)
        for row, n in enumerate(batch.lengths.tolist()):
            left[row, 5 - n :] = batch.input_ids[row, :n]
        found = lm.model(left, attention_mask=(left > 0).long(), position_ids=((left > 0).cumsum(1) - 1).clamp(min=0))
        assert torch.allclose(found.logits[:, -1], whole, atol=1e-4)
        refused(ValueError, "two-dimensional attention mask", lm.model, left, attention_mask=torch.zeros(2, 1, 5, 5))
        with pytest.raises(ValueError, match="several texts in one row, which dictionary in an FFN"):
            lm.model(left[:1], position_ids=torch.tensor([[0, 1, 2, 0, 1]]))


def test_the_input_is_what_the_keys_read() -> None:
    lm = tiny.build("gpt2")
    memory, seen = lm.memory(1), []
    eye, none = torch.eye(tiny.WIDTH), torch.zeros(tiny.WIDTH)
    batch = lm.batch([lm.tokens("the capital of France is")])
    same = FeatureDictionary(1, eye, none, 0 * eye, none, skip=eye, reads="input")
    with same.spliced(lm), memory.through(seen.append):  # opened later, it sees what was put in
        forward_logits(lm, batch, batch.lengths - 1)
    with memory.respond(lambda x, _: seen.append(x)):
        forward_logits(lm, batch, batch.lengths - 1)
    assert torch.allclose(seen[0][:, 1:], seen[1][:, 1:], atol=1e-6)
    assert not torch.allclose(seen[0][:, 0], seen[1][:, 0], atol=1e-3)  # the first position stays as it is


def test_what_does_not_fit_a_model_is_refused_in_a_line() -> None:
    lm, wide = tiny.build("llama"), torch.zeros(3, tiny.WIDTH)
    none = torch.zeros(tiny.WIDTH)
    refused(WrongModelError, r"takes 2 numbers to 2, and layer 0 of tiny-llama is 32 wide: name", made().require, lm)
    with pytest.raises(WrongModelError, match=r"of layer 9, and tiny-llama has layers 0 to 3"):
        FeatureDictionary(9, wide, BIAS, wide, none).require(lm)
    with pytest.raises(UnsupportedModelError, match=r"layer 2 of tiny-mixtral is a mixture of experts"):
        FeatureDictionary(2, wide, BIAS, wide, none).require(tiny.build("mixtral"))
    refused(UnsupportedModelError, "encoder", FeatureDictionary(2, wide, BIAS, wide, none).require, tiny.build("bert"))
    behind = FeatureDictionary(2, wide, BIAS, wide, none, after_norm=True)
    behind.require(lm)
    refused(UnsupportedModelError, "FFN's own output", behind.require, tiny.build("gemma2"))


def test_fingerprints_tell_dictionaries_apart() -> None:
    kinds = [made(), made(k=1), made(centred=True), made(threshold=BIAS), made(skip=torch.eye(2))]
    assert len({each.fingerprint for each in kinds}) == len(kinds)
    assert made().fingerprint == made().fingerprint
