"""`Largest`: the t largest coefficients of each neuron of a layer so far, and the prefixes that they were at."""

import math

import torch
from torch import Tensor


class Largest:
    """A running list of the largest coefficients of each neuron, in memory that does not grow with the text.

    The smallest coefficient in a neuron's list is the threshold that a new one has to pass. After the first batches few
    neurons of a batch pass theirs, and only these are looked at more closely: the expected number of entries that ever
    enter a list over n tokens is t (1 + ln(n / t)).

    Args:
        d_ffn: the number of neurons.
        t: how many are kept of each.
        signed: whether the size of a coefficient counts, and not its value: so in a gated network, whose coefficients
            are of either sign.
        device: where the lists are.

    Attributes:
        coefficients: (d_ffn, t), the largest first; 0 where there are no t yet.
        prefixes: (d_ffn, t), the numbers that the prefixes were added with; -1 where there are no t yet.
        signed: see above.
    """

    def __init__(self, d_ffn: int, t: int, signed: bool, device: torch.device | str = "cpu") -> None:
        self.signed = signed
        self.coefficients = torch.zeros(d_ffn, t, device=device)
        self.prefixes = torch.full((d_ffn, t), -1, dtype=torch.long, device=device)

    @property
    def sizes(self) -> Tensor:
        """What the lists are ordered by, (d_ffn, t); minus infinity where there is no entry yet."""
        sizes = self.coefficients.abs() if self.signed else self.coefficients
        return sizes.masked_fill(self.prefixes < 0, -math.inf)

    def add(self, coefficients: Tensor, prefixes: Tensor) -> None:
        """Looks at prefixes, (n,), with their coefficients, (n, d_ffn); of equal ones those of earlier batches stay.

        Raises ValueError: a coefficient is not finite.
        """
        self.coefficients = self.coefficients.to(coefficients.device)
        self.prefixes = self.prefixes.to(coefficients.device)
        sizes = coefficients.abs() if self.signed else coefficients
        best, kept = sizes.amax(0).float(), self.sizes
        if not bool(best.isfinite().all()):
            raise ValueError(f"the coefficient of neuron {int((~best.isfinite()).nonzero()[0])} is not finite")
        passing = (best > kept[:, -1]).nonzero()[:, 0]
        if not len(passing):
            return
        t = self.prefixes.shape[1]
        new_sizes, places = sizes[:, passing].T.topk(min(t, len(sizes)), dim=1)
        new = coefficients.T[passing[:, None], places].float()
        merged = torch.cat([kept[passing], new_sizes.float()], dim=1)
        order = merged.sort(dim=1, descending=True, stable=True).indices[:, :t]
        self.coefficients[passing] = torch.cat([self.coefficients[passing], new], dim=1).gather(1, order)
        numbers = prefixes.to(places.device)[places]
        self.prefixes[passing] = torch.cat([self.prefixes[passing], numbers], dim=1).gather(1, order)
