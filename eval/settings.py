"""`EvalSettings`: what is measured, and how far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EvalSettings:
    """What is measured, and how far.

    Attributes:
        generate: whether to let the model answer freely (free-generation accuracy, preservation, fluency): the
            expensive part.
        max_new_tokens: the longest free answer.
        preservation_tokens: how much of an answer has to stay the same to count as preserved. (Fifty tokens of small
            talk differ after any change at all; what the answer is shows in its first few.)
        fluency_tokens: the length of the sampled text whose fluency is measured.
        perplexity_tokens: how much of the held-out text is read; 0 for no perplexity.
        max_tokens: tokens run at once.
        seed: for the sampled text.
        harness_tasks: tasks of the lm-evaluation-harness, for `eval.lm_eval.harness`: not measured fact by fact.
        harness_folder: a folder with task files of your own.
        harness_limit: the most examples of each task; None for all.
    """

    generate: bool = True
    max_new_tokens: int = 50
    preservation_tokens: int = 10
    fluency_tokens: int = 50
    perplexity_tokens: int = 512
    max_tokens: int = 4096
    seed: int = 0
    harness_tasks: Sequence[str] = ()
    harness_folder: str | None = None
    harness_limit: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.harness_tasks, str):
            raise ValueError(f"harness_tasks must be a list of tasks: [{self.harness_tasks}]")
        object.__setattr__(self, "harness_tasks", tuple(self.harness_tasks))  # not a configuration's own kind of list
