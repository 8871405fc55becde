"""The program: takes a model and does a job with it, by default edits facts, scores the edits, prints and stores both.

    python run.py [group=choice ...] [key=value ...]        (`python run.py --help` lists them)

`job=` says what is done; each job is a file in `jobs/`, the only place where locators, editors and the evaluation meet.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf

from jobs.job import new_folder

OmegaConf.register_new_resolver("run_folder", new_folder, replace=True, use_cache=True)

# The processes that launchers start find this project's packages, also in a folder that has a "conf" of its own.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> float | None:
    """Does the job that the configuration names; gives what `objective` asks for."""
    from jobs.base import start  # seconds to import, which `--help` does not need

    return start(config)


if __name__ == "__main__":
    # Not the functions of __main__ but those of the module: other processes find them there by name (launchers).
    import run

    with warnings.catch_warnings():
        run.main()
