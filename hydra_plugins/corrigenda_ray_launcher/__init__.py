"""A Hydra launcher that runs a sweep's jobs on a ray cluster, or on a local ray (``launcher=ray``).

Hydra's own plugin for ray (hydra-ray-launcher 1.2) holds cloudpickle below 3, and current joblib needs 3: they cannot
be installed together. This one needs ray alone. (Hydra finds its plugins in the namespace package hydra_plugins.)
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class RayLauncher(Launcher):
    """One ray task a job; the project has to be installed, and the store mounted, on every machine of a cluster.

    Args:
        address: of a running cluster, e.g. "auto" or "ray://host:10001"; None starts a local ray.
        num_cpus: of a local ray; None: all.
        task_cpus: that each job asks for.
        task_gpus: that each job asks for; may be a fraction.
        init: more arguments of ``ray.init``, e.g. ``runtime_env``.
    """

    def __init__(
        self,
        address: str | None = None,
        num_cpus: int | None = None,
        task_cpus: float = 1,
        task_gpus: float = 0,
        init: dict[str, Any] | None = None,
    ) -> None:
        self.address = address
        self.num_cpus = num_cpus
        self.task_cpus = task_cpus
        self.task_gpus = task_gpus
        self.init = dict(init or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Takes what Hydra hands over before the sweep."""
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs and waits for all of them. Raises ImportError: ray is not installed."""
        try:
            import ray
        except ImportError as error:
            raise ImportError("launcher=ray needs ray: pip install 'corrigenda[ray]'") from error
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        own = not ray.is_initialized()
        if own:
            local = {} if self.address else {"num_cpus": self.num_cpus, "include_dashboard": False}
            ray.init(address=self.address, log_to_driver=True, **local, **self.init)
        try:
            task = ray.remote(num_cpus=self.task_cpus, num_gpus=self.task_gpus)(_execute)
            state = Singleton.get_state()
            waiting = [
                task.remote(
                    initial_job_idx + number,
                    list(filter_overrides(overrides)),
                    self.hydra_context,
                    self.config,
                    self.task_function,
                    state,
                    os.getcwd(),
                )
                for number, overrides in enumerate(job_overrides)
            ]
            found: list[JobReturn] = ray.get(waiting)
        finally:
            if own:
                ray.shutdown()
        return found


def _execute(
    number: int,
    overrides: list[str],
    hydra_context: HydraContext,
    config: DictConfig,
    task_function: TaskFunction,
    state: Any,
    folder: str,
) -> JobReturn:
    """One job, in a worker."""
    os.chdir(folder)
    setup_globals()
    Singleton.set_state(state)
    job = hydra_context.config_loader.load_sweep_config(config, overrides)
    with open_dict(job):
        job.hydra.job.id = f"{job.hydra.job.name}_{number}"
        job.hydra.job.num = number
    HydraConfig.instance().set_config(job)
    return run_job(
        hydra_context=hydra_context,
        task_function=task_function,
        config=job,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


# A plain mapping: Hydra runs this file before it is in sys.modules, where a dataclass would look for its annotations.
ConfigStore.instance().store(
    group="hydra/launcher",
    name="corrigenda_ray",
    node={
        "_target_": "hydra_plugins.corrigenda_ray_launcher.RayLauncher",
        "address": None,
        "num_cpus": None,
        "task_cpus": 1,
        "task_gpus": 0,
        "init": {},
    },
)
