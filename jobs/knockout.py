"""``job=knockout``: attention knockout of facts, and the mean over them."""

from collections.abc import Sequence
from typing import Any

from jobs import survey
from jobs.shared.registry import register
from locate import AttentionKnockout, average


@register(
    "knockout",
    survey.SurveySettings,
    aim="attention knockout of facts: where the last token reads what the answer needs (Geva et al. 2023)",
    parts={"_target_": "jobs.knockout.Job", "locator": AttentionKnockout()},
)
class Job(survey.Job):
    """Knocks out attention in facts' prompts: results and pictures of each, and the mean relative changes."""

    mean_name = "average"

    def mean(self, results: Sequence[Any]) -> Any:
        """The mean changes with intervals over subjects."""
        return average(results)
