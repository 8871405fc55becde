"""What the tests of side memories share."""

from contextlib import nullcontext

import torch
from by_hooks import changed, coefficients, logits
from edits_parts import origin
from torch import Tensor

from corrigenda import CodebookEdit, LanguageModel, SideMemoryEdit
from corrigenda.edits.routed import RoutedEdit
from corrigenda.forward.recording import forward_logits

LAYER = 2
PROMPTS = [
    "the Eiffel tower is located in the city of",
    "Danielle speaks",
    "Thomas plays the piano in the capital of Italy , in the north of",
    "Big Ben stands in the country of",
]


def score_by_hand(lm: LanguageModel, delta: Tensor, ids: list[int]) -> float:
    """D in float64: the mean over all tokens but the first of | m (V' - V) |, from the module's own input."""
    return float((coefficients(lm, LAYER, ids).double() @ delta.double()).norm(dim=1)[1:].mean())


def side_memory(lm: LanguageModel, size: float = 30.0) -> tuple[SideMemoryEdit, list[bool]]:
    """A random side memory whose threshold lies between the scores of `PROMPTS`; and which of these it answers."""
    memory = lm.memory(LAYER)
    delta = torch.randn(memory.values.shape, generator=torch.Generator().manual_seed(1))
    delta *= size * float(memory.values.norm() / delta.norm())
    scores = [score_by_hand(lm, delta, lm.tokens(prompt)) for prompt in PROMPTS]
    low, high = sorted(scores)[1:3]
    edit = SideMemoryEdit.of(memory, origin(lm), delta[None], torch.tensor([(low + high) / 2]))
    return edit, [value > (low + high) / 2 for value in scores]


def codebook(lm: LanguageModel) -> tuple[CodebookEdit, list[bool]]:
    """A codebook with the keys of two of the prompts."""
    memory = lm.memory(LAYER)
    batch = lm.batch([lm.tokens(prompt) for prompt in PROMPTS])
    with memory.capture(batch.lengths - 1) as seen:
        forward_logits(lm, batch, batch.lengths - 1)
    keys = seen.coefficients[[0, 2]]
    values = 20 * torch.randn(2, memory.d_model, generator=torch.Generator().manual_seed(2))
    radius = float(torch.pdist(seen.coefficients).min()) / 2
    edit = CodebookEdit.of(memory, origin(lm), keys, values, torch.full((2,), radius))
    return edit, [True, False, True, False]


def routed(kind: str, lm: LanguageModel) -> tuple[RoutedEdit, list[bool]]:
    return side_memory(lm) if kind == "side_memory" else codebook(lm)


def by_hand(lm: LanguageModel, edit: RoutedEdit, ids: list[int], n_prompt: int, answers: bool) -> Tensor:
    """Logits (position, vocabulary) of one unpadded row with the edit done by a hook of our own."""

    def change(entered: Tensor, output: Tensor) -> Tensor:
        coefficients, new = entered.reshape(len(ids), -1), output.reshape(len(ids), -1).clone()
        if isinstance(edit, SideMemoryEdit):
            new[1:] += coefficients[1:] @ edit.deltas[0]
        elif isinstance(edit, CodebookEdit):
            last = coefficients[n_prompt - 1]
            new[n_prompt - 1 :] = edit.values[(edit.keys - last).norm(dim=1).argmin()]
        return new.view(output.shape)

    with changed(lm.architecture.values(LAYER), change) if answers else nullcontext():
        return logits(lm, ids)


def greedy_by_hand(lm: LanguageModel, edit: RoutedEdit, prompt: str, answers: bool, n: int) -> list[int]:
    """Greedy decoding without a cache: whole forwards over prompt and continuation."""
    ids = lm.tokens(prompt)
    n_prompt = len(ids)
    for _ in range(n):
        ids = [*ids, int(by_hand(lm, edit, ids, n_prompt, answers)[-1].argmax())]
    return ids[n_prompt:]
