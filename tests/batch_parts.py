"""A batch of rows of several lengths, what a model says after each, and how far apart two models' words are."""

from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.recording import forward_logits
from corrigenda.prompts import TokenBatch


def a_batch(lm: LanguageModel) -> TokenBatch:
    rows = [[5, 6, 7, 8, 9], [10, 11, 12], [13, 14, 15, 16, 17, 18]]
    return lm.batch(rows if lm.parts is None else [[*row[:2], lm.parts.border, *row[2:]] for row in rows])


def last_logits(lm: LanguageModel) -> Tensor:
    batch = a_batch(lm)
    return forward_logits(lm, batch, batch.lengths - 1)


def distance(left: Tensor, right: Tensor) -> float:
    """The largest difference of two log-probabilities."""
    return float((left.log_softmax(-1) - right.log_softmax(-1)).detach().abs().max())


def by_transformers(lm: LanguageModel, prompt: str, max_new_tokens: int) -> str:
    inputs = lm.tokenizer(prompt, return_tensors="pt").to(lm.device)
    out = lm.model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
    return lm.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
