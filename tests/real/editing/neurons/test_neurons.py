import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.forward.recording import forward_logits
from editing import Enhance, Suppress, UpdateNeurons
from locate.neurons.locator import Neurons


def logits(lm: LanguageModel, prompt: str) -> Tensor:
    batch = lm.batch([lm.tokens(prompt)])
    with torch.no_grad():
        return forward_logits(lm, batch, batch.lengths - 1)[0]


def test_real_model(smollm2: LanguageModel) -> None:
    fact = Fact("Germany", "The capital of {} is", "Vienna", "Berlin", paraphrases=("The capital city of Germany is",))
    neurons = Neurons(steps=5)(smollm2, fact)
    old, new = (smollm2.tokenizer(f" {word}")["input_ids"][0] for word in ("Berlin", "Vienna"))
    before = logits(smollm2, fact.statement).softmax(-1)
    with Suppress(neurons=neurons).edit(smollm2, [fact]).applied(smollm2):
        assert logits(smollm2, fact.statement).softmax(-1)[old] < 0.8 * before[old]
    with Enhance(neurons=neurons).edit(smollm2, [fact]).applied(smollm2):
        assert logits(smollm2, fact.statement).softmax(-1)[old] > before[old]
    # The paper's strength, 8, is far too much for so many neurons of this model (docs/neurons.md).
    with UpdateNeurons(neurons=neurons, write=1.0).edit(smollm2, [fact]).applied(smollm2):
        after = logits(smollm2, fact.statement).softmax(-1)
    assert after[new] > after[old]
    assert before[new] < before[old]
