"""A judge: another model that says whether an answer is right, where words alone do not tell."""

from typing import TYPE_CHECKING

from corrigenda.system.lazy import lazily

if TYPE_CHECKING:
    from eval.judge.agreement import kappa as kappa
    from eval.judge.judge import Judge as Judge
    from eval.judge.judge import JudgeError as JudgeError
    from eval.judge.verdicts import judge_prompt as judge_prompt
    from eval.judge.verdicts import verdict_of as verdict_of

__all__ = lazily(__name__)
