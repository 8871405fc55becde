"""What the tests of WISE share."""

from typing import Any

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.forward.recording import forward_logits
from corrigenda.moments.text import Text
from editing import Unrelated, Wise
from editing.memory_based.wise.merging import subspace
from editing.shared.training_rows import target_rows

EIFFEL = Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris")
BEN = Fact("Big Ben", "{} stands in the country of", "Italy", "England")
DANIELLE = Fact("Danielle Darrieux", "the mother tongue of {} is", "English", "French")
THOMAS = Fact("Thomas", "the native language of {} is", "Dutch piano", "German")
FACTS = [EIFFEL, BEN, DANIELLE, THOMAS]
TEXT = Text("self", tokens=1024, length=16)


SMALL: dict[str, Any] = {
    "lr": 20.0,  # random weights: their layers add next to nothing to the stream
    "max_norm": 1e4,
    "prefix_lengths": ((3, 4),),
    "prefixes": 1,
    "thinned": 1,
    "replay": 2,
    "unrelated": Unrelated(Text(tokens=32 * 12, length=12), prompts=False),
}
"""What fits a tiny model of random weights."""


def wise(**changes: Any) -> Wise:
    settings = SMALL | {
        "layer": 2,
        "shards": 2,
        "edits_per_shard": 2,
        "rho": 0.5,
        "steps": 60,
        "weight": 0.01,
        "unrelated_batch": 16,
        "other_subjects": 2,
        "hard_negatives": 4,
        "text": TEXT,
    }
    return Wise(**(settings | changes))


def mask(editor: Wise, shard: int, shape: torch.Size) -> Tensor:
    return subspace(editor.rho, editor.masks, editor.seed, shard, shape)


def losses(lm: LanguageModel, facts: list[Fact]) -> Tensor:
    """-log P per token of each fact's target and the end token after its prompt, by the model as it is."""
    found = []
    for fact in facts:
        ids, n = target_rows(lm, fact)
        logs = forward_logits(lm, lm.batch([ids], [n]))[0].log_softmax(-1)
        found.append(-float(logs[range(n - 1, len(ids) - 1), ids[n:]].mean()))
    return torch.tensor(found)
