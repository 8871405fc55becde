"""``job=features``: which features of a dictionary fire at facts, and which an edit adds and removes."""

from jobs import survey
from jobs.shared.registry import register
from locate.features.facts import Features


@register(
    "features",
    survey.SurveySettings,
    aim="features of a dictionary that fire at facts, in words, and what an edit makes of them",
    parts={"_target_": "jobs.features.Job", "locator": Features()},
)
class Job(survey.Job):
    """Looks for the features of facts: a result and a picture each."""
