"""``job=backward``: the backward lens, the gradient of each fact's object taken apart and read in words."""

from jobs import survey
from jobs.shared.registry import register
from locate import BackwardLens


@register(
    "backward",
    survey.SurveySettings,
    aim="the gradient of each fact's object, taken apart and read in words (Katz et al. 2024)",
    parts={"_target_": "jobs.backward.Job", "locator": BackwardLens()},
)
class Job(survey.Job):
    """Takes facts' gradients apart: a result and a picture each."""
