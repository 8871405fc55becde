"""Greedy decoding and sampling with the attention cache, for batches of prompts of any lengths."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corrigenda.errors import SettingsError
from corrigenda.forward.prompt_caches import PromptCaches
from corrigenda.forward.recording import model_logits, takes_position_ids
from corrigenda.forward.shared import SharedStart
from corrigenda.models.bare import BareModel
from corrigenda.models.condition import settle
from corrigenda.models.routes import Routes
from corrigenda.settings.checked import Count, check_value
from corrigenda.text.display import quoted

Choose = Callable[[Tensor], Tensor]
"""From next-token logits (batch, vocabulary) to the tokens chosen (batch,)."""
Stop = Callable[[int], bool]
"""Whether a text ends at a token."""


def bar(logits: Tensor, banned: Collection[int]) -> Tensor:
    """The same tensor, (..., vocabulary), with minus infinity put in the place of the banned tokens' logits.

    Tokens that the model does not say are passed over: a token for padding that was never embedded, -1 for "none".
    """
    if known := [token for token in banned if 0 <= token < logits.shape[-1]]:
        logits[..., known] = -torch.inf
    return logits


@dataclass(frozen=True)
class Greedy:
    """Picks the most likely token but for those that are banned.

    With the end tokens banned a text goes on to its last token, as with `min_new_tokens` of transformers.
    """

    banned: frozenset[int] = frozenset()

    def __call__(self, logits: Tensor) -> Tensor:
        """The tokens (batch,) for logits (batch, vocabulary), in which the banned ones are overwritten."""
        return bar(logits, self.banned).argmax(-1)


greedy = Greedy()


def never(_token: int) -> bool:
    """No text ends at this token, nor at any other."""
    return False


def sampler(generator: torch.Generator, top_k: int | None = None, banned: Collection[int] = ()) -> Choose:
    """Draws from the model's distribution, or from its `top_k` most likely tokens, never one of `banned`."""

    def choose(logits: Tensor) -> Tensor:
        logits = bar(logits.float().cpu(), banned)
        if top_k is not None:
            least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
            logits.masked_fill_(logits < least, -torch.inf)
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]

    return choose


@torch.no_grad()
def decode(
    lm: BareModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int | Sequence[int],
    choose: Choose | Sequence[Choose] = greedy,
    stop: Stop | Sequence[Stop] | None = None,
    start: SharedStart | PromptCaches | None = None,
) -> list[list[int]]:
    """Continues token sequences.

    Args:
        lm: a causal model.
        prompts: the tokens of each prompt.
        max_new_tokens: the most tokens to add; one number for all prompts or one for each.
        choose: picks the next tokens; one for all prompts or one for each (the rows of one are picked together). It may
            change the logits that it is given.
        stop: tells of a token whether a row ends at it; by default, whether it is the end token. One for all prompts
            or one for each.
        start: what was run before of the prompts: what they have in common, or all but their last tokens.

    Returns:
        The added tokens of each prompt. The one that ended a row is among them where text comes before its line break.

    Raises:
        ContextLengthError: a prompt with the tokens that may be added is longer than the model reads.
        RuntimeError: torch computes in another precision (`models.condition.settle`).
        ValueError: the model is not causal, or there is no prompt.
        SettingsError: a number of tokens is negative, or no whole number.
    """
    _check(lm, prompts)
    limits = _limits(max_new_tokens, len(prompts))
    choosers, stops = _for_each(prompts, choose), _for_each(prompts, stop or lm.is_end)
    _require_room(lm, prompts, limits)
    ids, mask, cache = (SharedStart(lm, prompts) if start is None else start).before_decoding(prompts)
    routes = Routes()
    active = list(range(len(prompts)))  # which prompt each row still running belongs to
    added: list[list[int]] = [[] for _ in prompts]
    for _ in range(max(limits)):
        last = torch.full((len(active),), ids.shape[1] - 1, device=lm.device)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
        if takes_position_ids(lm.model):
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        tokens = _chosen(model_logits(lm, last, routes, **inputs), [choosers[row] for row in active])
        going = [row for row, token in enumerate(tokens) if not stops[active[row]](token)]
        for row, token in enumerate(tokens):
            if row in going or lm.is_kept(token):
                added[active[row]].append(token)
        going = [row for row in going if len(added[active[row]]) < limits[active[row]]]
        if not going:
            break
        if len(going) < len(active):
            # Rows that ended are dropped, so that a long answer does not make the others wait.
            keep = torch.tensor(going, device=lm.device)
            cache.batch_select_indices(keep)
            routes = routes.rows(keep)
            mask = mask[keep]
            active = [active[row] for row in going]
        ids = torch.tensor([[tokens[row]] for row in going], device=lm.device)
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    return [tokens[:limit] for tokens, limit in zip(added, limits, strict=True)]  # a limit may be 0


def _for_each(prompts: Sequence[Any], given: Any) -> list[Any]:
    """What is given once for all prompts, or once for each."""
    return [given] * len(prompts) if callable(given) else list(given)


def _check(lm: BareModel, prompts: Sequence[Sequence[int]]) -> None:
    """Checks that the model can generate, and that there is something to go on after."""
    if not lm.architecture.family.causal:
        raise ValueError(f"{lm.name} is a masked model; it cannot generate text")
    settle(lm.model, lm.name)
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise ValueError("generation needs at least one prompt, and every prompt at least one token")


def _limits(max_new_tokens: int | Sequence[int], n_prompts: int) -> list[int]:
    """The most tokens to add, for each prompt."""
    if not isinstance(max_new_tokens, Sequence):
        return [check_value("generate", "max_new_tokens", max_new_tokens, Count)] * n_prompts
    limits = [check_value("generate", "max_new_tokens", limit, Count) for limit in max_new_tokens]
    if len(limits) != n_prompts:
        raise SettingsError(f"generate: max_new_tokens has {len(limits)} numbers for {n_prompts} prompts")
    return limits


def _require_room(lm: BareModel, prompts: Sequence[Sequence[int]], limits: Sequence[int]) -> None:
    """Checks that each prompt can be read with the tokens that may be added."""
    room = lm.context_length
    for prompt, limit in zip(prompts, limits, strict=True):
        # The last token that is added is not read.
        n_tokens = len(prompt) + max(limit - 1, 0)
        if room is not None and n_tokens > room:
            text = quoted(lm.text(prompt[:40]))
            lm.require_room(n_tokens, f"the prompt {text} ({len(prompt)} tokens) with up to {limit} new tokens")


def _chosen(logits: Tensor, choosers: Sequence[Choose]) -> list[int]:
    """The next token of each row, picked by the row's own chooser."""
    kinds = list(dict.fromkeys(choosers))
    if len(kinds) == 1:  # a copy of all rows' logits would take as long as the choice
        return [int(token) for token in kinds[0](logits).tolist()]
    tokens = [0] * len(choosers)
    for choose in kinds:
        rows = [row for row, chooser in enumerate(choosers) if chooser == choose]
        for row, token in zip(rows, choose(logits[rows]).tolist(), strict=True):
            tokens[row] = token
    return tokens
