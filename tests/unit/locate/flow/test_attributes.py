import itertools
from contextlib import ExitStack
from pathlib import Path

import pytest
import tiny
import torch
from by_hooks import leaving, logits

from corrigenda import Fact, LanguageModel
from locate.flow.attributes import AttributeFlow, attribute_flow, attribute_tokens
from locate.lens.parts import parts_of
from locate.lens.words import read_static

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English")
TEXTS = ["Danielle Darrieux was born in Paris, France. The language of France is French", "piano violin"]


def outputs(lm: LanguageModel, ids: list[int]) -> dict[tuple[str, int], torch.Tensor]:
    """What attention, FFN and block of each layer return, (position, d_model)."""
    parts = {"attention": lm.architecture.attention, "ffn": lm.architecture.values, "block": lm.architecture.block}
    places = list(itertools.product(parts, range(lm.n_layers)))
    with ExitStack() as stack:
        seen = [stack.enter_context(leaving(parts[name](layer))) for name, layer in places]
        logits(lm, ids)
    return {place: out.reshape(-1, out.shape[-1]) for place, [out] in zip(places, seen, strict=True)}


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
def test_rates_and_ranks_by_hand(family: str) -> None:
    lm = tiny.build(family)
    found = attribute_flow(lm, FACT, TEXTS, "French", k=12)
    attributes = {lm.tokens(word)[0] for word in ("Danielle", "Darrieux", "born", "Paris", "France", "language")}
    attributes |= {lm.tokens(word)[0] for word in ("French", "piano", "violin")}
    assert found.n_attributes == len(attributes)
    norm, head = lm.architecture.final_norm, lm.model.get_output_embeddings()
    parts = outputs(lm, lm.tokens(FACT.statement))
    french = lm.tokens("French")[0]
    with torch.no_grad():
        for layer in range(lm.n_layers):
            subject = head(norm(parts["block", layer][5]))
            top = subject.topk(12).indices.tolist()
            assert float(found.rates[layer]) == pytest.approx(len(attributes & set(top)) / 12)
            state = head(norm(parts["block", layer][7]))
            assert int(found.state_ranks[layer]) == int((state > state[french]).sum())
            for name, ranks in (("attention", found.attention_ranks), ("ffn", found.ffn_ranks)):
                scores = head.weight @ (norm.weight * parts[name, layer][7])
                assert int(ranks[layer]) == int((scores > scores[french]).sum()), (name, layer)


@pytest.mark.parametrize("family", ["gemma2", "olmo2"])
def test_what_is_added_is_what_the_norm_behind_it_gives(family: str) -> None:
    lm, draw = tiny.build(family), torch.Generator().manual_seed(1)
    for parameter in lm.model.parameters():
        if parameter.ndim == 1:  # norms that weigh all dimensions alike would not change a rank
            parameter.data.add_(0.7 * torch.randn(parameter.shape, generator=draw).to(parameter))
    found, ids = attribute_flow(lm, FACT, answer="French"), lm.tokens(FACT.statement)
    layers = parts_of(lm, ids).layers
    french = lm.tokens("French")[0]
    for layer, one in enumerate(layers):
        for norm, output, ranks in (
            (one.attention_norm, one.attention, found.attention_ranks),
            (one.ffn_norm, one.ffn, found.ffn_ranks),
        ):
            assert norm is not None
            scores = read_static(lm, norm.gain * output)
            assert int(ranks[layer]) == int((scores > scores[french]).sum()), layer


@pytest.mark.parametrize("family", [*tiny.DECODER_KINDS, *tiny.MIXTURE_KINDS])
def test_in_every_kind_of_block_the_last_state_is_the_models_answer(family: str) -> None:
    lm = tiny.build(family)
    found = attribute_flow(lm, FACT, answer="top")
    assert found.rates is None
    assert int(found.state_ranks[-1]) == 0


def test_words_of_a_tokenizer_that_puts_a_space_before_every_text(lm: LanguageModel) -> None:
    lm.tokenizer = tiny.space_before()
    assert attribute_tokens(lm, ["born in Paris."]) == {3, 4}


def test_a_subject_at_the_prompts_end(lm: LanguageModel) -> None:
    fact = Fact("Paris", "the capital of France is {}", "Rome")
    found = attribute_flow(lm, fact, ["London"], "London", k=1)
    parts = outputs(lm, lm.tokens(fact.statement))
    top = [int(lm.model.lm_head(lm.model.model.norm(parts["block", layer][-1])).argmax()) for layer in range(4)]
    assert found.rates.tolist() == [float(token == lm.tokens("London")[0]) for token in top]


def test_a_space_alone_before_the_answer_is_not_what_is_followed() -> None:
    lm = tiny.build_byte_level()
    space, one = lm.tokenizer(" 1")["input_ids"]
    found = attribute_flow(lm, tiny.NUMBER, answer="1949")
    said = logits(lm, [*lm.tokens(tiny.NUMBER.statement), space])[-1]
    assert int(found.state_ranks[-1]) == int((said > said[one]).sum())


def test_words_that_are_attributes() -> None:
    lm = tiny.build("gpt2")
    found = attribute_tokens(lm, ["The city, of (Paris). is at unheard-of"])
    assert found == {lm.tokens("city")[0], lm.tokens("Paris")[0]}
    with pytest.raises(ValueError, match="hold no word"):
        attribute_flow(lm, FACT, ["of the"], "French")


def test_without_texts_it_is_saved_and_drawn_too(lm: LanguageModel, tmp_path: Path) -> None:
    found = attribute_flow(lm, FACT, [], "French")
    found.save(tmp_path)
    again = AttributeFlow.load(tmp_path)
    assert again.summary() == found.summary()
    assert again.table().row_count == lm.n_layers
    again.plot(tmp_path / "it.png")
