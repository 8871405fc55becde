"""Batches of facts whose targets are solved for in several processes, on this machine or on a cluster, with ray.

Every worker gets the model as it is, with the edits that are applied, once. A batch goes through the same steps there
as here, so that a target is the same to rounding. What a worker has solved is handed over as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from corrigenda import EditRefusedError, LanguageModel
from corrigenda.progress import track
from corrigenda.settings import Count, checked

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
@checked
class Workers:
    """The processes that solve.

    Attributes:
        number: how many; 0 for this one alone. On a cluster so many batches are asked for at a time.
        address: of a ray cluster, as "auto" or "ray://host:10001"; None for processes on this machine. The project has
            to be installed on every machine of a cluster.
    """

    number: Count = 0
    address: str | None = None

    def each(
        self,
        lm: LanguageModel,
        work: Callable[[LanguageModel, Task], Result],
        tasks: Sequence[Task],
        names: Sequence[str],
        told: str,
    ) -> Iterator[tuple[int, Result]]:
        """What the work gives for each task, as it comes, with the task's number.

        Args:
            lm: the model, as every worker gets it.
            work: a function of a module, of the model and a task.
            tasks: what is to be done.
            names: what each task is called in an error.
            told: what is said of how far it is.

        Raises:
            EditRefusedError: the work refused a task.
            ImportError: ray is not installed.
            RuntimeError: the work failed, or its process died. What is done by then was handed over.
        """
        try:
            import ray
        except ImportError as error:
            raise ImportError("solving in several processes needs ray: pip install 'corrigenda[ray]'") from error
        own = not ray.is_initialized()
        if own:
            local = {} if self.address else {"num_cpus": self.number, "include_dashboard": False}
            ray.init(address=self.address, log_to_driver=False, **local)
        try:
            model = ray.put(lm)
            # Tried once: what fails here fails again, and an error of one's own says more than the third crash.
            remote = ray.remote(num_cpus=1, max_retries=0)(_worked)
            waiting: dict[Any, int] = {}
            left = iter(range(len(tasks)))
            failed: list[tuple[int, Exception]] = []
            for _ in track(range(len(tasks)), told, bar=False):
                while len(waiting) < self.number and not failed and (number := next(left, None)) is not None:
                    waiting[remote.remote(work, model, tasks[number])] = number
                if not waiting:
                    break
                [done], _ = ray.wait(list(waiting), num_returns=1)
                number = waiting.pop(done)
                try:
                    result = ray.get(done)
                except (ray.exceptions.RayError, EditRefusedError) as error:
                    failed.append((number, error))  # what others are at is waited for, and kept
                    continue
                yield number, result
            for number, first in failed[:1]:
                raise _told(names[number], first) from first
        finally:
            if own:
                ray.shutdown()


def _worked(work: Callable[[LanguageModel, Task], Result], lm: LanguageModel, task: Task) -> Result:
    """One task, in a worker."""
    torch.set_num_threads(1)  # the processes share the machine's cores
    return work(lm, task)


def _told(name: str, error: Exception) -> Exception:
    """The error of a task in one line."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, EditRefusedError):
        return EditRefusedError(str(cause))
    why = str(cause).strip().splitlines()[0] if str(cause).strip() else ""
    return RuntimeError(
        f"{name}: solving failed in a worker ({type(cause).__name__}: {why}); what was solved is kept: run it again, "
        "or with workers.number=0 to see the error where it is"
    )
