import pytest
import tiny
import torch
from malformed_parts import refused

from corrigenda.moments.text import Text
from locate.lens.aggregation import aggregation
from locate.lens.parts import parts_of, parts_of_each
from locate.lens.saturation import SaturationEvents, saturation_events
from locate.lens.triggers import trigger_examples
from locate.lens.words import read_static

TEXT = Text(tokens=60, length=10)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_figures_are_those_of_single_prefixes(family: str) -> None:
    lm = tiny.build(family)
    found = saturation_events(lm, TEXT, texts=4, k=3, seed=1)
    assert found.promotion.shape == (tiny.DEPTH, 4)
    norm, head = lm.architecture.final_norm, lm.model.get_output_embeddings()
    for number, position in enumerate(found.positions.tolist()):
        ids = TEXT.sequences(lm)[number][: position + 1]
        with torch.no_grad():
            token = int(lm.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            layers = parts_of(lm, ids).layers
            tops = [int(head(norm(one.after)).argmax()) for one in layers]
        assert int(found.events[number]) == next(n for n in range(tiny.DEPTH) if set(tops[n:]) == {token})
        for layer, one in enumerate(layers):
            updates = one.coefficients[:, None] * lm.memory(layer).values
            scores = read_static(lm, updates)[:, token]
            sizes = updates.norm(dim=1)
            dominant = scores[sizes.argsort(descending=True)[:3]]
            wanted = {
                "promotion": scores[scores > 0].sum(),
                "elimination": scores[scores < 0].sum(),
                "highest": dominant.max(),
                "mean": dominant.mean(),
                "lowest": dominant.min(),
                "share": sizes.sort(descending=True).values[:3].sum() / sizes.sum(),
            }
            for name, value in wanted.items():
                assert float(getattr(found, name)[layer, number]) == pytest.approx(float(value), abs=1e-4), name


def test_positions_are_of_the_sequences_that_the_text_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the shipped text there may be fewer than were asked for."""
    monkeypatch.setattr("corrigenda.moments.text.shipped_text", lambda: "ab " * 20)
    lm, text = tiny.build_byte_level(), Text(tokens=1000, length=10)
    n = len(text.sequences(lm))
    assert 1 < n < text.n_sequences
    assert len(saturation_events(lm, text, texts=50).events) == len(aggregation(lm, text, texts=50).positions) == n
    assert len(saturation_events(lm, text, texts=n - 1).events) == n - 1
    refused(ValueError, f"t={9 * n}: the text has only {8 * n} prefixes", trigger_examples, lm, text, 9 * n)
    refused(ValueError, "only 0 tokens in whole sequences of 500", Text(tokens=500, length=500).sequences, lm)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_prompts_taken_apart_together_are_each_as_alone(family: str) -> None:
    lm = tiny.build(family)
    rows, positions = [ids[:n] for ids, n in zip(TEXT.sequences(lm), (3, 9, 6), strict=False)], [-1, 4, 0]
    for ids, position, found in zip(rows, positions, parts_of_each(lm, rows, positions), strict=True):
        alone = parts_of(lm, ids, position)
        assert torch.allclose(found.logits, alone.logits, atol=1e-4)
        for one, other in zip(found.layers, alone.layers, strict=True):
            for name in ("before", "attention", "coefficients", "ffn", "after"):
                assert torch.allclose(getattr(one, name), getattr(other, name), atol=1e-4), name
            assert (one.ffn_norm is None) == (other.ffn_norm is None)
            if one.ffn_norm is not None and other.ffn_norm is not None:
                assert torch.allclose(one.ffn_norm.gain, other.ffn_norm.gain, rtol=1e-3)


def made() -> SaturationEvents:
    """Two layers, three texts, of which the second is settled after the first layer."""
    highest = torch.tensor([[1.0, 5.0, 2.0], [4.0, 2.0, 6.0]])
    rest = {name: torch.ones(2, 3) for name in ("promotion", "mean", "lowest", "share")}
    return SaturationEvents(
        "x", 3, torch.arange(3), torch.tensor([1, 0, 1]), elimination=torch.full((2, 3), -0.5), highest=highest, **rest
    )


def test_means_by_hand() -> None:
    found = made()
    assert found.at_events["highest"].mean == pytest.approx((4 + 5 + 6) / 3)
    assert found.elsewhere["highest"].mean == pytest.approx((1 + 2 + 2) / 3)
    assert found.at_events["net"].mean == pytest.approx(0.5)
    assert found.summary()["events"] == [1, 2]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"text.length=1: sequences of at least 2 tokens are needed"):
        saturation_events(tiny.build("llama"), Text(tokens=12, length=1))
