"""Keys: what stands for a fact's subject among an FFN's coefficients, at every layer that was run.

The coefficients at the subject's last token, of the bare prompt or in the mean over contexts (Meng et al. 2022, ROME,
eq. 3). Keys are rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from editing.locate_then_edit.prompt_run import PromptRun


def bare_keys(run: PromptRun, layer: int) -> Tensor:
    """The keys of the facts' first rows, (fact, d_ffn): of the bare prompts, unless they are left out.

    Raises:
        ValueError: the prompts were not run for this layer.
    """
    return run.keys(layer)[run.prompts.bare]


def mean_keys(run: PromptRun, layer: int, weights: Tensor | None = None) -> Tensor:
    """The keys k*, (fact, d_ffn): means over each fact's contexts, which count by `weights`, (prefix,), or alike.

    Where a context is left out, the others share its weight in proportion (see `group_weights`). Raises ValueError: the
    prompts were not run for this layer.
    """
    prompts = run.prompts
    rewriting = prompts.rewriting
    return mean_over_contexts(
        run.keys(layer)[rewriting], prompts.fact[rewriting], prompts.prefix[rewriting], prompts.n_facts, weights
    )


def mean_over_contexts(
    keys: Tensor, fact: Tensor, prefix: Tensor, n_facts: int, weights: Tensor | None = None
) -> Tensor:
    """Each fact's mean key, (fact, d_ffn), of keys (row, d_ffn).

    `fact` and `prefix`, (row,), are the fact and the context of each row; weights as in `mean_keys`.
    """
    sums = torch.zeros(n_facts, keys.shape[1], device=keys.device)
    if weights is None:
        rows = torch.bincount(fact, minlength=n_facts)
        return sums.index_add_(0, fact, keys) / rows[:, None]
    share = weights.to(keys)[prefix]
    total = torch.zeros(n_facts, device=keys.device).index_add_(0, fact, share)
    return sums.index_add_(0, fact, keys * share[:, None]) / total[:, None]


def group_weights(sizes: Sequence[int]) -> Tensor:
    """Weights of contexts that come in groups, (prefix,): every group counts the same, and in it every context.

    So MEMIT's authors take their keys: the mean of the bare prompt (a group of its own) and of each length of sampled
    contexts. Raises ValueError: there is no group, or an empty one.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"groups of contexts must have at least one each: {list(sizes)}")
    return torch.cat([torch.full((size,), 1 / (size * len(sizes))) for size in sizes])
