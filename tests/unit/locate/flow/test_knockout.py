from contextlib import ExitStack

import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.forward.knockout import knocked_out
from locate.flow.knockout import AttentionKnockout, attention_knockout
from locate.flow.results import average_knockouts

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English")
ANSWER = "French German"


def plain(lm: LanguageModel, settings: AttentionKnockout, groups: dict[str, list[int]], answer: list[int]) -> Tensor:
    """(source, layer): a whole forward of the prompt and the answer for each source and window."""
    prompt = lm.tokens(FACT.statement)
    batch = lm.batch([[*prompt, *answer[:-1]]])
    n, depth = batch.input_ids.shape[1], lm.n_layers
    found = torch.zeros(len(settings.sources), depth)
    for row, source in enumerate(settings.sources):
        edges = torch.zeros(1, n, n, dtype=torch.bool)
        for reader in groups[settings.reader]:
            edges[0, reader, groups[source]] = True
        for centre in range(depth):
            first = centre - settings.window // 2
            with ExitStack() as stack:
                for layer in range(max(first, 0), min(first + settings.window, depth)):
                    stack.enter_context(knocked_out(lm, layer, edges))
                logits = lm.model(input_ids=batch.input_ids, use_cache=False).logits[0]
            places = torch.arange(len(prompt) - 1, n)
            found[row, centre] = logits[places].softmax(-1)[range(len(answer)), answer].prod()
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", [*tiny.DECODER_KINDS, *tiny.MIXTURE_KINDS])
@pytest.mark.parametrize("reader", ["last", "relation"])
def test_equals_whole_forwards(family: str, reader: str) -> None:
    lm = tiny.build(family)
    # the 0, mother 1, tongue 2, of 3, Danielle 4, Darrieux 5, is 6, the 7; the answer's first token 8
    groups = {"subject": [4, 5], "last_subject": [5], "relation": [0, 1, 2, 3, 6], "last": [7, 8]}
    sources = ("subject", "relation", "last_subject") if reader == "last" else ("subject", "last_subject")
    settings = AttentionKnockout(sources=sources, reader=reader, window=2, max_tokens=16)
    result = settings.find(lm, FACT, ANSWER)
    wanted = plain(lm, settings, groups, lm.tokens(ANSWER))
    assert result.sources == sources
    assert torch.allclose(result.probabilities.log(), wanted.log(), atol=2e-5)
    assert float(result.changes.abs().max()) > 1e-4


def test_chunks_do_not_change_what_comes_out(lm: LanguageModel) -> None:
    together = attention_knockout(lm, FACT, ANSWER, window=3)
    apart = attention_knockout(lm, FACT, ANSWER, window=3, max_tokens=1)
    assert torch.allclose(together.probabilities, apart.probabilities, atol=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_masked_model_is_asked_at_its_mask() -> None:
    lm = tiny.build("bert")
    lm.tokenizer.mask_token = "<unk>"
    result = attention_knockout(lm, FACT, "French", window=lm.n_layers)
    batch = lm.batch([[*lm.tokens(FACT.statement), 3]])
    n = batch.input_ids.shape[1]
    edges = torch.zeros(1, n, n, dtype=torch.bool)
    edges[0, n - 1, [4, 5]] = True
    with ExitStack() as stack:
        for layer in range(1, lm.n_layers):
            stack.enter_context(knocked_out(lm, layer, edges))
        logits = lm.model(input_ids=batch.input_ids).logits[0, -1]
    # Around the last of four layers a window of four has the last three.
    wanted = logits.softmax(-1)[lm.tokens("French")]
    assert torch.allclose(result.probabilities[0, -1], wanted[0], atol=1e-6)


def test_what_the_prompt_does_not_have_is_absent(lm: LanguageModel) -> None:
    fact = Fact("Danielle Darrieux", "{} speaks", "English")
    assert attention_knockout(lm, fact, "French").sources == ("subject", "last")
    # The subject cannot read what comes after it.
    assert attention_knockout(lm, fact, "French", reader="last_subject", sources=("last", "first")).sources == (
        "first",
    )


def test_results_are_averaged() -> None:
    lm = tiny.build("gpt2")
    other = Fact("Big Ben", "{} stands", "London")
    results = [attention_knockout(lm, FACT, "French"), attention_knockout(lm, other, "Paris")]
    average = average_knockouts(results)
    assert average.counts == {"subject": 2, "relation": 1, "last": 2}
    mean = (results[0].changes[0] + results[1].changes[0]) / 2
    assert torch.allclose(average.changes["subject"].float(), mean)
    assert average.summary()["sources"]["relation"]["low"] is None  # of one subject


def test_an_answer_of_no_probability_is_refused() -> None:
    """What falls from 0 falls by no share of it: NaN, which no record of a survey can hold."""
    lm = tiny.build("llama", scale=8.0)
    with torch.no_grad():
        lm.model.get_output_embeddings().weight.mul_(1e4)
        last = lm.model(input_ids=torch.tensor([lm.tokens(FACT.statement)])).logits[0, -1]
    with pytest.raises(ValueError, match="the probability 0 after"):
        attention_knockout(lm, FACT, [int(last.argmin())])  # type: ignore[arg-type]


def test_settings() -> None:
    with pytest.raises(ValueError, match="each once"):
        AttentionKnockout(sources=("subject", "subject"))
    with pytest.raises(ValueError, match="no fact"):
        average_knockouts([])
