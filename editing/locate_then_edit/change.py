"""The change of an output while it is solved for: a free vector for each fact, within a bound."""

import torch
from torch import Tensor


class Change:
    """delta of Meng et al. 2022 (ROME), eq. 4: the parameter itself, by Adam, within the bound.

    Args:
        old: what is changed, (fact, part, d_model); there is one part for each site that is solved for.
        bound: on the change's norm, (fact, part, 1).
        lr: Adam's learning rate.
        weight_decay: weight of |delta| / |old|^2.
    """

    def __init__(self, old: Tensor, bound: Tensor, lr: float, weight_decay: float) -> None:
        self.old, self.bound, self.weight_decay = old, bound, weight_decay
        self.parameter = self.start().requires_grad_()
        self.optimiser = torch.optim.Adam([self.parameter], lr=lr)

    def start(self) -> Tensor:
        """What the parameter is at first, fact by fact."""
        return torch.zeros_like(self.old)

    def delta(self) -> Tensor:
        """The change as it is now, (fact, part, d_model)."""
        return self.parameter

    def penalty(self, delta: Tensor) -> Tensor:
        """What a change adds to each fact's loss, (fact,)."""
        # Guarded against a square root's gradient at zero, where delta starts.
        norm = (delta.square().sum(2) + 1e-30).sqrt()
        return self.weight_decay * (norm / self.old.square().sum(2)).sum(1)

    def step(self, loss: Tensor, open_facts: Tensor) -> None:
        """A step down the losses, (fact,), of the facts that are not done, (fact,); those that are stay."""
        self.optimiser.zero_grad()
        loss[open_facts].sum().backward()
        held = self.parameter.detach().clone()
        self.optimiser.step()
        with torch.no_grad():
            self.keep_within_bound()
            # A fact that is done keeps its delta; Adam's momentum would carry it on.
            still = open_facts.view(-1, *[1] * (held.dim() - 1))
            self.parameter.copy_(torch.where(still, self.parameter, held))

    def keep_within_bound(self) -> None:
        """Shortens what is longer than the bound."""
        norm = self.parameter.norm(dim=2, keepdim=True)
        self.parameter.copy_(torch.where(norm > self.bound, self.parameter * self.bound / norm, self.parameter))
