"""Configurations as the command line composes them."""

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from jobs.shared.outside import add_choices

CONF = Path(__file__).parents[1] / "conf"


def composed(*overrides: str) -> Any:
    """The configuration of these arguments."""
    add_choices()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides))
