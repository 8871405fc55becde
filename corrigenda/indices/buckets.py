"""`Buckets`: numbers in buckets, and those of the first buckets on a list for each query."""

import torch
from torch import Tensor


class Buckets:
    """Each number from 0 on in one bucket, (n,)."""

    def __init__(self, buckets: Tensor) -> None:
        self._sorted, self._numbers = torch.sort(buckets, stable=True)

    def where(self, buckets: Tensor) -> tuple[Tensor, Tensor]:
        """Where some buckets begin in the list of numbers, and how many each holds; of the shape of `buckets`."""
        starts = torch.searchsorted(self._sorted, buckets)
        return starts, torch.searchsorted(self._sorted, buckets, right=True) - starts

    def numbers(self, places: Tensor) -> Tensor:
        """The numbers at some places of the list."""
        return self._numbers[places]


def slots(sizes: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fills `count` slots a query from buckets of `sizes`, (N, bucket), one bucket after the other, in the order asked.

    For each slot, (N, count), which of the buckets it comes from, which of that bucket's, and whether it is filled.
    """
    ends = sizes.cumsum(1)
    slot = torch.arange(count).expand(len(sizes), count).contiguous()
    bucket = torch.searchsorted(ends, slot, right=True).clamp(max=sizes.shape[1] - 1)
    within = slot - (ends - sizes).gather(1, bucket)
    return bucket, within, slot < ends[:, -1:]
