"""`EvalSettings`: what is measured, and how far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from corrigenda.settings import AtLeastOne, Count, Seed, SettingsError, checked
from eval.real_use.settings import RealUse


@dataclass(frozen=True)
@checked
class EvalSettings:
    """What is measured, and how far.

    Attributes:
        generate: whether to let the model answer freely (free-generation accuracy, preservation, fluency): the
            expensive part.
        max_new_tokens: the longest free answer.
        preservation_tokens: how much of an answer has to stay the same to count as preserved. (Fifty tokens of small
            talk differ after any change at all; what the answer is shows in its first few.)
        fluency_tokens: the length of the sampled text whose fluency is measured; at least 3, for a 3-gram.
        perplexity_tokens: how much of the held-out text is read, at least 2; 0 for no perplexity.
        max_tokens: tokens run at once.
        seed: for the sampled text.
        harness_tasks: tasks of the lm-evaluation-harness, for `eval.lm_eval.harness`: not measured fact by fact.
        harness_folder: a folder with task files of your own.
        harness_limit: the most examples of each task; None for all.
        real_use: how questions are asked as a person asks them; None: they are not, nor without `generate`.
    """

    generate: bool = True
    max_new_tokens: AtLeastOne = 50
    preservation_tokens: AtLeastOne = 10
    fluency_tokens: Annotated[int, Ge(3), Lt(2**63)] = 50
    perplexity_tokens: Count = 512
    max_tokens: AtLeastOne = 4096
    seed: Seed = 0
    harness_tasks: tuple[str, ...] = ()
    harness_folder: str | None = None
    harness_limit: AtLeastOne | None = None
    real_use: RealUse | None = None

    def __post_init__(self) -> None:
        if self.perplexity_tokens == 1:
            raise SettingsError(
                "EvalSettings: perplexity_tokens=1 must be 0, for no perplexity, or at least 2: the first token is not "
                "predicted"
            )
