"""Whether the Hugging Face hub can be used now, and doing without it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

REACH_SECONDS = 5.0
"""How long the hub may take to answer."""
_TRUE = {"1", "ON", "YES", "TRUE"}


def why_unreachable(*switches: str) -> str:
    """Why the hub cannot be used now; empty when it answers. `switches` are the environment variables that turn it off.

    The hub's clients repeat a failing request for half a minute, and none takes an argument that changes that. So one
    request with a short timeout asks first; where it fails, they are sent straight to their cache.
    """
    from huggingface_hub import constants, get_session

    for variable in switches:
        if os.environ.get(variable, "").upper() in _TRUE:
            return f"offline mode is on: {variable}={os.environ[variable]}"
    try:
        status = get_session().head(constants.ENDPOINT, timeout=REACH_SECONDS).status_code
    # The HTTP client, and so its exceptions, differ between releases of huggingface_hub.
    except Exception as error:
        return f"{constants.ENDPOINT} does not answer: {error}"
    return f"{constants.ENDPOINT} is out of order: status {status}" if status >= 500 else ""


@contextmanager
def offline() -> Iterator[None]:
    """Makes transformers go straight to its cache; the hub's switch is read from the environment only at import.

    (`local_files_only` is not handed on everywhere: the look for an adapter beside a model asks the hub all the same.)
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
