"""Where a model answers a prompt: a causal one after its last token, a masked one at its mask."""

from collections.abc import Sequence

from corrigenda.models.bare import BareModel
from corrigenda.text.joints import joint


def with_mask(lm: BareModel, prompt: str) -> str:
    """A prompt as it is put to a model: for a masked model, with a mask at its end where it has none.

    Raises:
        ValueError: the prompt has several masks, or the tokenizer of a masked model has none.
    """
    if lm.architecture.family.causal:
        return prompt
    mask = lm.tokenizer.mask_token
    if mask is None:
        raise ValueError(f"{lm.name} is a masked model, and its tokenizer has no mask token")
    if prompt.count(mask) > 1:
        raise ValueError(f"the prompt {prompt!r} has {prompt.count(mask)} masks; one is needed, where the answer goes")
    return prompt if mask in prompt else prompt + joint(prompt, "a") + mask  # a word is to be there


def before_answer(lm: BareModel, prompt: str) -> str:
    """The part of a prompt from `with_mask` that stands before the answer, without the space that comes with it."""
    return prompt if lm.architecture.family.causal else prompt.split(lm.tokenizer.mask_token)[0].removesuffix(" ")


def position(lm: BareModel, ids: Sequence[int]) -> int:
    """The position whose logits are the answer's, in the tokens of a prompt from `with_mask`."""
    return len(ids) - 1 if lm.architecture.family.causal else list(ids).index(int(lm.tokenizer.mask_token_id))
