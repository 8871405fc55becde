import torch
from batch_parts import distance
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import record

TOLERANCE = 1e-4


def plain(lm: LanguageModel, row: Tensor) -> Tensor:
    """The model itself, on one unpadded row, with nothing of ours in between: (position, vocabulary)."""
    return lm.model(input_ids=row[None], attention_mask=torch.ones_like(row[None])).logits[0]


def test_real_model(smollm2: LanguageModel) -> None:
    prompts = [
        "The Eiffel Tower is located in the city of Paris",
        "Water boils at",
        "The mother tongue of Danielle Darrieux is",
    ]
    batch = smollm2.batch([smollm2.tokens(prompt) for prompt in prompts])
    start = torch.tensor([4, 0, 6])
    partial = PartialForward(smollm2, record(smollm2, batch, layers=[6]), 6, start)
    logits = partial.logits()
    for row in range(3):
        length = int(batch.lengths[row])
        expected = plain(smollm2, batch.input_ids[row, :length])[int(start[row]) :]
        assert distance(logits[row, : length - int(start[row])], expected) < TOLERANCE
