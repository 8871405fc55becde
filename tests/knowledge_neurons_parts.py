"""What the tests of knowledge neurons share."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tiny
import torch
from by_hooks import changed_input
from torch import Tensor

from corrigenda import LanguageModel

PROMPT = "the mother tongue of the native speaker Danielle Darrieux is"
ANSWERS = {"one": "French", "several": "French , Dutch"}


def build(family: str) -> LanguageModel:
    lm = tiny.build(family, scale=2.0)
    if family == "bert":
        lm.tokenizer.mask_token = "?"
    return lm


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warning that partial forwards of masked models run all positions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def tokens(lm: LanguageModel, prompt: str, answer: str) -> tuple[list[int], list[int], list[int]]:
    """The row that is run, the positions that predict the answer, and the answer's tokens."""
    ids, wanted = (lm.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer))
    n = len(wanted)
    if lm.architecture.family.causal:
        return ids + wanted[:-1], list(range(len(ids) - 1, len(ids) - 1 + n)), wanted
    return ids + [lm.tokenizer.mask_token_id] * n, list(range(len(ids), len(ids) + n)), wanted


def probability(
    lm: LanguageModel, layer: int, row: tuple[list[int], list[int], list[int]], coefficients: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """P(answer), and the coefficients (position, d_ffn) at the predicting positions, or those put in their place."""
    ids, at, wanted = row
    seen: list[Tensor] = []

    def put(entered: Tensor) -> Tensor:
        flat = entered.reshape(-1, entered.shape[-1]).clone()  # one row; OPT has no batch dimension here
        seen.append(flat[at].detach())
        if coefficients is not None:
            flat[at] = coefficients
        return flat.view_as(entered)

    with changed_input(lm.architecture.values(layer), put):
        logits = lm.model(input_ids=torch.tensor([ids])).logits[0, at]
    return logits.log_softmax(-1).gather(1, torch.tensor(wanted)[:, None]).sum().exp(), seen[0]


def brute_force(
    lm: LanguageModel, layer: int, row: tuple[list[int], list[int], list[int]], scales: Sequence[float]
) -> Tensor:
    """m_i * mean over a of dP(a m)/dm_i, summed over the predicting positions."""
    with torch.no_grad():
        _, m = probability(lm, layer, row)
    gradients = []
    for scale in scales:
        leaf = (scale * m).requires_grad_()
        p, _ = probability(lm, layer, row, leaf)
        gradients.append(torch.autograd.grad(p, leaf)[0])
    return (m * torch.stack(gradients).mean(0)).sum(0)
