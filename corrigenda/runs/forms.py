"""The form of a stored run's configuration and summary: what the list of runs and the leaderboard read of them.

They are checked before anything is made of them, since a run's folder may come from elsewhere.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Named = dict[str, Any]


class _Form(BaseModel):
    """What is not named here is allowed, and nobody's business here."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Model(_Form):
    name: str | None = None


class _Job(_Form):
    name: str = "edit"
    sequential: Named | None = None


class Configuration(_Form):
    """``config.yaml``."""

    model: _Model | None = None
    job: _Job | None = None
    mode: str | None = None
    choices: Named | None = None
    editor: Named | None = None
    data: Named | None = None
    eval: Named | None = None
    submission: Named | None = None


class _Figures(_Form):
    before: float | None = None
    after: float | None
    low: float | None
    high: float | None
    n: int | None = None


class _Point(_Form):
    t: int
    metrics: dict[str, _Figures]
    fixed: dict[str, _Figures] = {}


class _Stopped(_Form):
    t: int
    n_facts_asked_for: int
    why: str


class _Summary(_Form):
    metrics: Named | None = None
    n_facts: int | None = Field(default=None, ge=0)


class _EditSummary(_Form):
    editor: str
    model: str
    data: str
    mode: Literal["single", "batch", "sequential"]
    n_facts: int = Field(ge=0)
    definitions: int = 1
    metrics: dict[str, _Figures] = {}
    curve: list[_Point] = []
    stopped: _Stopped | None = None
    model_fingerprint: str = ""
    data_fingerprint: str = ""
    peak_memory_mb: float | None = None
    seconds_per_edit: float | None = None


def problem_of_config(config: Mapping[str, Any]) -> str:
    """What is wrong with a configuration's form, in a line; empty where nothing is."""
    return _problem("config.yaml", Configuration, config)


def problem_of_summary(summary: Mapping[str, Any], of_edits: bool) -> str:
    """The same of a summary; `of_edits`: of a run that edits and scores."""
    return _problem("summary.json", _EditSummary if of_edits else _Summary, summary)


def _problem(name: str, form: type[BaseModel], value: Mapping[str, Any]) -> str:
    try:
        form.model_validate(dict(value))
    except ValidationError as error:
        found = error.errors(include_url=False)
        missing = [str(each["loc"][0]) for each in found if each["type"] == "missing" and len(each["loc"]) == 1]
        if missing:
            return f"{name} lacks {', '.join(missing)}"
        first = found[0]
        return f"{name}: {'.'.join(map(str, first['loc']))}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return ""
