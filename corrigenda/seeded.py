"""`seeded`: networks that are drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, what is drawn on the CPU is drawn from a seed; its generator then goes on where it was.

    A GPU's generator stays as it is.
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        yield
