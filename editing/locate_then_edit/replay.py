"""Forward replay: a target for each edited layer from the one that was solved for at the first.

Liu et al. 2026, "From Backward Spreading to Forward Replay: Revisiting Target Construction in LLM Parameter Editing"
(FE): z is solved for at the first edited layer, and put in there; what the following edited layers then put out are
their targets. So the targets of all layers can hold at once, which those of a residual that is spread need not.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Read, Replace, intervene
from corrigenda.forward.recording import forward_to
from corrigenda.models.sites import Site as Place
from editing.locate_then_edit.prompts import Prompts
from editing.locate_then_edit.targets import Site


@torch.no_grad()
def replayed(
    lm: LanguageModel, batches: Sequence[Prompts], layers: Sequence[int], first: Tensor, site: Site
) -> dict[int, Tensor]:
    """By layer, ascending, the facts' targets, (fact, d_model), float32 on the CPU, from those at the first of them.

    The facts' first rows are run (the bare prompts, unless they are left out) on the model on which these were solved
    for; outputs are those of the blocks, or of the feed-forward networks.
    """
    places = [Place("block" if site == "block" else "ffn", layer) for layer in layers]
    found: dict[int, list[Tensor]] = {layer: [] for layer in layers[1:]}
    begin = 0
    for prompts in batches:
        at = prompts.subject[prompts.bare]
        batch = lm.batch([prompts.beginning(lm, row) for row in prompts.bare.tolist()])
        own = first[begin : begin + prompts.n_facts]
        begin += prompts.n_facts
        with ExitStack() as stack:
            stack.enter_context(intervene(lm, places[0], Replace(own), at))
            seen = [stack.enter_context(intervene(lm, place, Read(), at)) for place in places[1:]]
            forward_to(lm, batch, layers[-1])
        for layer, one in zip(found, seen, strict=True):
            found[layer].append(one.value.float().cpu())
    return {layers[0]: first, **{layer: torch.cat(parts) for layer, parts in found.items()}}
