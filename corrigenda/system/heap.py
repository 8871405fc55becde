"""What malloc keeps of freed memory, and giving it back."""

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Gives the system what glibc's malloc keeps of freed memory; elsewhere nothing happens.

    Solving for targets leaves some 0.5 GB of holes in a model of 1.5 billion parameters: tensors of a megabyte, which
    glibc does not map each once it has seen larger ones.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
