"""General ability: tasks of the lm-evaluation-harness on the model, with its edits and without them.

Needs the optional package lm_eval (the extra ``harness``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from corrigenda import LanguageModel
from eval.settings import EvalSettings

Scores = dict[str, dict[str, float]]
"""By task, and then by metric."""


class Harness:
    """Some tasks, looked up once.

    Args:
        tasks: names of the harness's tasks or groups of tasks.
        folder: a folder with task files (YAML) of your own, whose names then are known too.
        limit: the most examples of each task; None for all.
        own_only: whether only the tasks in `folder` are known, which saves the look through the thousands of others.
        seed: for few-shot examples and sampled answers.
        max_tokens: tokens run at once.

    Raises:
        ImportError: lm_eval is not installed.
        ValueError: a task is not known.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        *,
        folder: str | Path | None = None,
        limit: int | None = None,
        own_only: bool = False,
        seed: int = 0,
        max_tokens: int = 4096,
    ) -> None:
        try:
            from lm_eval.tasks import TaskManager
        except ImportError:
            raise ImportError(
                "tasks of the lm-evaluation-harness need the package lm_eval: the extra 'harness', or "
                "pip install 'lm_eval>=0.4.11'"
            ) from None
        if folder is not None and not Path(folder).is_dir():
            raise FileNotFoundError(f"there is no folder {folder} with tasks for the harness")
        self.tasks = list(tasks)
        self._manager = TaskManager(include_path=None if folder is None else str(folder), include_defaults=not own_only)
        self._limit = limit
        self._seed = seed
        self._max_tokens = max_tokens
        known = set(self._manager.all_tasks)
        for task in self.tasks:
            if task not in known:
                where = "" if folder is None else f" and {folder} has no file of one"
                raise ValueError(
                    f"the lm-evaluation-harness knows no task {task!r}{where}; `lm_eval ls tasks` lists them"
                )

    @classmethod
    def of(cls, settings: EvalSettings) -> Harness | None:
        """The tasks that the settings name; None where they name none."""
        if not settings.harness_tasks:
            return None
        return cls(
            list(settings.harness_tasks),
            folder=settings.harness_folder,
            limit=settings.harness_limit,
            seed=settings.seed,
            max_tokens=settings.max_tokens,
        )

    def run(self, lm: LanguageModel) -> Scores:
        """The tasks' metrics on the model as it is now, with whatever edits are applied.

        By task (for a group also its parts) and metric, such as ``{"arc_easy": {"acc": 0.4, "acc_norm": 0.38}}``; a
        metric of one of several filters is named "metric,filter". Raises ValueError: the model is not causal;
        ConnectionError: a task's data cannot be had.
        """
        lm.architecture.require_one_text("the harness")
        if not lm.architecture.family.causal:
            raise ValueError(f"{lm.name} is a masked model; the harness's tasks are for causal models here")
        from lm_eval import simple_evaluate

        from eval.lm_eval.model import EditedModel

        try:
            with _random_state_kept():
                found: Any = simple_evaluate(
                    EditedModel(lm, self._max_tokens),
                    tasks=self.tasks,
                    limit=self._limit,
                    bootstrap_iters=0,
                    log_samples=False,
                    task_manager=self._manager,
                    random_seed=self._seed,
                    numpy_random_seed=self._seed,
                    torch_random_seed=self._seed,
                    fewshot_random_seed=self._seed,
                )
        except OSError as error:
            raise ConnectionError(
                f"the data of {', '.join(self.tasks)} cannot be had: {error}. Connect to the network, or give a folder "
                "with tasks whose data are local files (dataset_path: json, dataset_kwargs: {data_files: ...})"
            ) from error
        return {task: _metrics(values) for task, values in found["results"].items()}

    def before_and_after(
        self, lm: LanguageModel, before: Scores | None = None
    ) -> dict[str, dict[str, dict[str, float | None]]]:
        """The tasks' metrics without the applied edits and with them, ``{task: {metric: {"before", "after"}}}``.

        With no edit applied there is no "before"; it is not measured where it is given.
        """
        if before is None and lm.edits:
            with lm.edits.suspended():
                before = self.run(lm)
        return paired(before, self.run(lm))


def paired(before: Scores | None, after: Scores) -> dict[str, dict[str, dict[str, float | None]]]:
    """``{task: {metric: {"before", "after"}}}``; "before" is None where it is not known."""
    known: Mapping[str, Mapping[str, float]] = before or {}
    return {
        task: {metric: {"before": known.get(task, {}).get(metric), "after": value} for metric, value in metrics.items()}
        for task, metrics in after.items()
    }


def _metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """The figures out of what the harness says of a task: "acc,none" is the metric acc, without a filter."""
    found = {}
    for key, value in values.items():
        name, _, filter_name = key.partition(",")
        is_figure = isinstance(value, (int, float)) and not isinstance(value, bool)
        if filter_name and is_figure and not name.endswith("_stderr"):
            found[name if filter_name == "none" else key] = float(value)
    return found


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """The harness seeds the global generators; what comes after it is not to depend on that."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
